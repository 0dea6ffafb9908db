// The @anthropic-ai/sdk package against the scripted engine.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BASE, apiKey: "none", maxRetries: 0 });
const model = "claude-sonnet-4";
const tools = [{
  name: "get_weather",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];
const ask = (content, more = {}) => ({
  model, max_tokens: 4000, messages: [{ role: "user", content }], ...more,
});

const whole = await client.messages.create(ask("hello"));
assert.deepEqual(whole.content, [{ type: "text", text: "Hello there, friend." }]);
assert.equal(whole.stop_reason, "end_turn");
const streamed = await client.messages.stream(ask("hello", { max_tokens: 500000 })).finalMessage();
assert.deepEqual(streamed.content, whole.content);
assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);

const deep = await client.messages.stream(
  ask("hello", { thinking: { type: "enabled", budget_tokens: 1024 } })).finalMessage();
assert.equal(deep.content[0].type, "thinking");
assert.equal(deep.content[0].thinking, "Let me see.");
assert.ok(deep.content[0].signature.length > 0);
assert.equal(deep.content[1].text, "Hello there, friend.");

for (const stream of [false, true]) {
  const request = ask("call the tool", { tools });
  const first = stream ? await client.messages.stream(request).finalMessage()
    : await client.messages.create(request);
  const use = first.content.find((block) => block.type === "tool_use");
  assert.equal(first.stop_reason, "tool_use");
  assert.ok(use.id.startsWith("toolu_"));
  assert.deepEqual(use.input, { city: "Paris" });
  const second = await client.messages.create({
    model, max_tokens: 1000, tools,
    messages: [{ role: "user", content: "call the tool" },
      { role: "assistant", content: first.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "RESULT-4711" }] }],
  });
  assert.equal(second.content[0].text, "The answer is 4711.");
}
const forced = await client.messages.create(
  ask("call the tool", { tools, tool_choice: { type: "tool", name: "get_weather" } }));
assert.deepEqual(forced.content.map((block) => [block.name, block.input]), [["get_weather", { city: "Paris" }]]);
const count = await client.messages.countTokens({ model, messages: [{ role: "user", content: "hello" }] });
assert.ok(count.input_tokens > 0);
await assert.rejects(client.messages.create(ask("hello", { temperature: 9 })),
  (e) => e.status === 400 && e.error.error.type === "invalid_request_error");
console.log("anthropic: ok");
