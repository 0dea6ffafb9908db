// The three SDKs against tandemd with the demo model: what a model really says, not a script.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const question = "What is the capital of France?";
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Bern"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, big: { type: "boolean" } },
  required: ["name", "big"],
  additionalProperties: false,
};
const isCall = (input) => ["Paris", "Bern"].includes(input.city) && Number.isInteger(input.days) &&
  input.days >= 1 && input.days <= 9 && Object.keys(input).length === 2;
const isAnswer = (v) => typeof v.name === "string" && v.name.length <= 12 && typeof v.big === "boolean";

async function openai() {
  const client = new OpenAI({ baseURL: process.env.BASE + "/v1", apiKey: "none", maxRetries: 0 });
  const ask = (more = {}) => ({
    model: "tandem-demo", temperature: 0, max_completion_tokens: 200, messages: [{ role: "user", content: question }], ...more,
  });
  const whole = await client.chat.completions.create(ask());
  const text = whole.choices[0].message.content;
  assert.ok(text.length > 0);
  let streamed = "";
  for await (const chunk of await client.chat.completions.create(ask({ stream: true })))
    streamed += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(streamed, text);
  const deep = await client.chat.completions.create(ask({ reasoning_effort: "low", thinking_budget: 40 }));
  assert.ok(deep.choices[0].message.reasoning_content.length > 0);
  assert.ok(deep.usage.completion_tokens_details.reasoning_tokens <= 41);
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  for (const reasoning_effort of [undefined, "low"]) {
    const forced = await client.chat.completions.create(
      ask({ tools, tool_choice: "required", reasoning_effort, thinking_budget: 30 }));
    const calls = forced.choices[0].message.tool_calls;
    assert.equal(forced.choices[0].finish_reason, "tool_calls");
    for (const call of calls) assert.ok(isCall(JSON.parse(call.function.arguments)));
  }
  const format = { type: "json_schema", json_schema: { name: "r", strict: true, schema } };
  const parsed = await client.chat.completions.parse(ask({ response_format: format }));
  assert.ok(isAnswer(JSON.parse(parsed.choices[0].message.content)));
  const response = await client.responses.create(
    { model: "tandem-demo", temperature: 0, input: question, max_output_tokens: 200, text: { format: { type: "json_schema", name: "r", schema } } });
  assert.ok(isAnswer(JSON.parse(response.output_text)));
}

async function anthropic() {
  const client = new Anthropic({ baseURL: process.env.BASE, apiKey: "none", maxRetries: 0 });
  const ask = (more = {}) => ({
    model: "tandem-demo", temperature: 0, max_tokens: 200, messages: [{ role: "user", content: question }], ...more,
  });
  const whole = await client.messages.create(ask());
  assert.ok(whole.content[0].text.length > 0);
  const streamed = await client.messages.stream(ask()).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  const deep = await client.messages.stream(ask({ thinking: { type: "enabled", budget_tokens: 40 } })).finalMessage();
  assert.equal(deep.content[0].type, "thinking");
  const tools = [{ name: "get_weather", input_schema: parameters }];
  const forced = await client.messages.create(ask({ tools, tool_choice: { type: "any", disable_parallel_tool_use: true } }));
  assert.equal(forced.stop_reason, "tool_use");
  assert.equal(forced.content.length, 1);
  assert.ok(isCall(forced.content[0].input));
  const answer = await client.messages.create(ask({ output_config: { format: { type: "json_schema", schema } } }));
  assert.ok(isAnswer(JSON.parse(answer.content[0].text)));
}

async function ai() {
  const provider = createOpenAICompatible({
    name: "tandem", baseURL: process.env.BASE + "/v1", apiKey: "none", supportsStructuredOutputs: true,
  });
  const base = { model: provider("tandem-demo"), prompt: question, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
  const whole = await generateText(base);
  assert.ok(whole.text.length > 0);
  let text = "";
  for await (const part of streamText(base).textStream) text += part;
  assert.equal(text, whole.text);
  const deep = await generateText({ ...base, providerOptions: { tandem: { reasoningEffort: "low" } } });
  assert.ok(deep.reasoningText.length > 0);
  const weather = tool({ description: "weather", inputSchema: z.object({ city: z.enum(["Paris", "Bern"]), days: z.number().int().min(1).max(9) }) });
  const forced = await generateText({ ...base, tools: { get_weather: weather }, toolChoice: "required" });
  for (const call of forced.toolCalls) assert.ok(isCall(call.input));
  assert.ok(forced.toolCalls.length > 0);
  const { object } = await generateObject({ ...base, schema: z.object({ name: z.string().max(12), big: z.boolean() }) });
  assert.ok(isAnswer(object));
}

await { openai, anthropic, ai }[process.argv[2]]();
console.log(process.argv[2] + ": ok");
