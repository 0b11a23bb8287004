// The `openai` client, unmodified, against a running hotset: chat, streams, tools, errors, lists, and
// what happens when a caller gives up. Run by openai_client_test.py, which starts the server:
//   node client_test.mjs BASE_URL API_KEY
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me of the sea." }];
const base = { model, messages, max_tokens: 24, temperature: 0 };
const tools = [{
  type: "function",
  function: { name: "weather", description: "The weather of a city",
              parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
}];

const tests = {
  async models() {
    const found = await client.models.retrieve(model);
    assert.equal(found.id, model);
    await assert.rejects(client.models.retrieve("another"), OpenAI.NotFoundError);
    await assert.rejects(client.embeddings.create({ model, input: "a" }), OpenAI.NotFoundError);
    await assert.rejects(client.responses.create({ model, input: "a" }), OpenAI.NotFoundError);
  },
  async chat() {
    const answer = await client.chat.completions.create(base);
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.equal(typeof answer.choices[0].message.content, "string");
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 24);
  },
  async streamedChat() {
    const whole = await client.chat.completions.create(base);
    const stream = await client.chat.completions.create({ ...base, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, 24);
  },
  async streamHelper() {
    const stream = client.chat.completions.stream({ ...base, n: 1 });
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, "length");
    assert.ok(final.choices[0].message.content.length > 0);
  },
  async choicesAndLogprobs() {
    const answer = await client.chat.completions.create({ ...base, temperature: 1.2, seed: 3, n: 3, logprobs: true, top_logprobs: 2 });
    assert.equal(answer.choices.length, 3);
    for (const choice of answer.choices) assert.equal(choice.logprobs.content.length, choice.logprobs.content.filter((t) => t.top_logprobs.length === 2).length);
  },
  async completions() {
    const answer = await client.completions.create({ model, prompt: "The history of", max_tokens: 8, temperature: 0 });
    let text = "";
    for await (const chunk of await client.completions.create({ model, prompt: "The history of", max_tokens: 8, temperature: 0, stream: true })) {
      text += chunk.choices[0].text;
    }
    assert.equal(text, answer.choices[0].text);
  },
  async promptLogprobs() {
    const prompt = "The caf\u00e9 of the sea";
    const answer = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 1 });
    const { text, logprobs } = answer.choices[0];
    assert.equal(text, prompt);
    assert.equal(logprobs.token_logprobs.length, answer.usage.prompt_tokens);
    assert.equal(logprobs.token_logprobs[0], null);
    assert.ok(logprobs.token_logprobs.slice(1).every((p) => p < 0));
    assert.equal(text.slice(logprobs.text_offset.at(-1)), logprobs.tokens.at(-1));
  },
  async fieldsThatDoNothing() {
    const answer = await client.chat.completions.create({
      ...base, user: "me", metadata: { a: "b" }, store: false, service_tier: "auto", safety_identifier: "x",
      prompt_cache_key: "k", modalities: ["text"], parallel_tool_calls: true, logit_bias: {}, verbosity: "medium",
      prediction: { type: "content", content: "The sea" }, response_format: { type: "text" },
      stream_options: null, audio: null, functions: [], function_call: "auto" });
    assert.equal(answer.choices[0].finish_reason, "length");
  },
  async tools() {
    // The demo model has never seen a tool; what must work is the way there and back.
    const answer = await client.chat.completions.create({ ...base, tools, tool_choice: "auto" });
    assert.ok(["length", "stop", "tool_calls"].includes(answer.choices[0].finish_reason));
    const history = [
      ...messages,
      { role: "assistant", content: null,
        tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: "{\"city\":\"Rome\"}" } }] },
      { role: "tool", tool_call_id: "call_1", content: "sunny" },
    ];
    const next = await client.chat.completions.create({ ...base, messages: history, tools });
    assert.ok(next.usage.prompt_tokens > answer.usage.prompt_tokens);
  },
  async errors() {
    const fails = async (body, type, part) => {
      await assert.rejects(client.chat.completions.create(body), (error) => {
        assert.ok(error instanceof type, `${error}`);
        assert.ok(error.message.includes(part), `${error.message} has no '${part}'`);
        assert.equal(typeof error.type, "string");
        assert.ok(error.code === null || typeof error.code === "string");
        return true;
      });
    };
    await fails({ ...base, temperature: "hot" }, OpenAI.BadRequestError, "temperature: found \"hot\"");
    await fails({ ...base, messages: [] }, OpenAI.BadRequestError, "messages");
    await fails({ ...base, messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] }, OpenAI.BadRequestError, "messages[0].content[0].type");
    await fails({ ...base, response_format: { type: "json_object" } }, OpenAI.BadRequestError, "response_format");
    await fails({ ...base, messages: [{ role: "user", content: "word ".repeat(5000) }] }, OpenAI.BadRequestError, "tokens, but the context holds");
    await fails({ ...base, guided_json: { type: "object" } }, OpenAI.BadRequestError, "guided_json: found an object");
    await fails({ ...base, stop: [""] }, OpenAI.BadRequestError, "stop[0]");
    await fails({ ...base, tools: [{ type: "function" }] }, OpenAI.BadRequestError, "tools[0].function");
    const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
    // A stream's error before its first event is an error like others.
    await assert.rejects(client.chat.completions.create({ ...base, stream: true, top_p: 2 }), OpenAI.BadRequestError);
  },
  async givingUp() {
    const controller = new AbortController();
    const stream = await client.chat.completions.create({ ...base, max_tokens: 900, stream: true }, { signal: controller.signal });
    let n = 0;
    try {
      for await (const chunk of stream) if (chunk && ++n === 3) controller.abort();
    } catch (error) {
      assert.equal(error.name === "AbortError" || error instanceof OpenAI.APIUserAbortError, true, `${error}`);
    }
    assert.ok(n >= 3);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`ok ${name}`);
}
