// The ai package with @ai-sdk/openai-compatible against the scripted engine.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "tandem", baseURL: process.env.BASE + "/v1", apiKey: "none" });
const model = provider("tandem");
const cities = [];
const tools = {
  get_weather: tool({
    description: "weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return "RESULT-4711";
    },
  }),
};
const plain = await generateText({ model, prompt: "hello", maxRetries: 0 });
assert.equal(plain.text, "Hello there, friend.");
const streamed = streamText({ model, prompt: "hello", maxRetries: 0 });
let text = "";
for await (const part of streamed.textStream) text += part;
assert.equal(text, plain.text);
const agent = await generateText({ model, tools, prompt: "call the tool", stopWhen: stepCountIs(4), maxRetries: 0 });
assert.equal(agent.text, "The answer is 4711.");
const live = streamText({ model, tools, prompt: "call the tool", stopWhen: stepCountIs(4), maxRetries: 0 });
assert.equal(await live.text, "The answer is 4711.");
assert.deepEqual(cities, ["Paris", "Paris"]);
console.log("ai: ok");
