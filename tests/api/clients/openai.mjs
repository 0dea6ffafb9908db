// The openai package against the scripted engine: text, stream, tools, parse helpers, responses.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE + "/v1", apiKey: "none", maxRetries: 0 });
const model = "gpt-4o";
const ask = (content, more = {}) => ({ model, messages: [{ role: "user", content }], ...more });
const tools = [{
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];

const whole = await client.chat.completions.create(ask("hello"));
assert.equal(whole.choices[0].message.content, "Hello there, friend.");
assert.equal(whole.choices[0].finish_reason, "stop");
assert.ok(Number.isInteger(whole.created) && whole.usage.total_tokens > 0);

let text = "";
let usage = null;
const stream = await client.chat.completions.create(
  ask("hello", { stream: true, stream_options: { include_usage: true } }));
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);

const thinking = await client.chat.completions.create(ask("hello", { reasoning_effort: "low" }));
assert.equal(thinking.choices[0].message.reasoning_content, "Let me see.");

for (const stream of [false, true]) {
  const request = ask("call the tool", { tools });
  const runner = stream ? client.chat.completions.stream(request) : null;
  const first = stream ? await runner.finalChatCompletion()
    : await client.chat.completions.create(request);
  const call = first.choices[0].message.tool_calls[0];
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const second = await client.chat.completions.create({
    model, tools,
    messages: [{ role: "user", content: "call the tool" }, first.choices[0].message,
      { role: "tool", tool_call_id: call.id, content: "RESULT-4711" }],
  });
  assert.equal(second.choices[0].message.content, "The answer is 4711.");
}

for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
  const forced = await client.chat.completions.create(ask("call the tool", { tools, tool_choice }));
  assert.deepEqual(JSON.parse(forced.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });
}

const schema = {
  type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false,
};
const parsed = await client.chat.completions.parse(ask("give json", {
  response_format: { type: "json_schema", json_schema: { name: "r", strict: true, schema } },
}));
assert.deepEqual(parsed.choices[0].message.parsed ?? JSON.parse(parsed.choices[0].message.content), { a: 12 });

const response = await client.responses.create({ model, input: "hello" });
assert.equal(response.output_text, "Hello there, friend.");
const seen = [];
let last = null;
for await (const event of await client.responses.create({
  model, stream: true, input: "call the tool",
  tools: [{ type: "function", ...tools[0].function, strict: false }],
})) {
  assert.equal(event.sequence_number, seen.length);
  seen.push(event.type);
  last = event;
}
assert.equal(seen[0], "response.created");
assert.equal(last.type, "response.completed");
const called = last.response.output.find((item) => item.type === "function_call");
assert.deepEqual(JSON.parse(called.arguments), { city: "Paris" });
const answer = await client.responses.create({
  model,
  input: [{ role: "user", content: "call the tool" }, called,
    { type: "function_call_output", call_id: called.call_id, output: "RESULT-4711" }],
});
assert.equal(answer.output_text, "The answer is 4711.");

const completion = await client.completions.create({ model, prompt: "hello", max_tokens: 3 });
assert.equal(completion.choices[0].finish_reason, "length");
assert.equal(completion.usage.completion_tokens, 3);

await assert.rejects(client.chat.completions.create(ask("hello", { temperature: 9 })),
  (e) => e.status === 400 && e.param === "temperature" && e.type === "invalid_request_error");
const names = [];
for await (const m of client.models.list()) names.push(m.id);
assert.ok(names.length >= 1);
console.log("openai: ok");
