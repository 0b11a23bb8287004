#!/usr/bin/env python3
"""`hotset serve` over real sockets: what it answers, that requests do not disturb each other, and how it
behaves when clients leave and when it is told to stop.
"""
import base64
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time

from cli_fixture import BINARY, TIMEOUT_S, TINY, environment, main
from server_fixture import Server, ServerFixture, SingleAnswers, in_threads

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


class ApiTest(ServerFixture):
    # With kernels that round the same for most batch sizes, so that answers can be compared.
    FLAGS = ("--repack", "off")

    # --- Chat

    def test_chat(self):
        body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "model": "any"}
        answer = self.server.post(CHAT, body)
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(answer["model"], "any")
        choice = answer["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertTrue(choice["message"]["content"])
        self.assertEqual(choice["finish_reason"], "length")
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 12)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 12)
        self.assertEqual(answer["timings"]["predicted_n"], 12)
        self.assertIn("hit_rate", answer["moe_cache"])
        # Again: the prompt is in the KV memory, but for one token.
        again = self.server.post(CHAT, body)
        self.assertEqual(again["timings"]["prompt_n"], 1)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1)

    def test_a_stream_has_what_the_whole_answer_has(self):
        body = {"messages": HELLO, "max_tokens": 20, "temperature": 0, "n": 2, "seed": 1}
        whole = self.server.post(CHAT, body)
        chunks = list(self.server.stream(CHAT, {**body, "stream_options": {"include_usage": True}}))
        texts = {0: "", 1: ""}
        reasons = {}
        for chunk in chunks[:-1]:
            self.assertEqual(chunk["object"], "chat.completion.chunk")
            self.assertEqual(chunk["id"], chunks[0]["id"])
            choice = chunk["choices"][0]
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
        self.assertEqual(reasons, {0: "length", 1: "length"})
        for i in (0, 1):
            self.assertEqual(texts[i], whole["choices"][i]["message"]["content"])
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 40)

    def test_sampling_is_repeatable_and_choices_differ(self):
        body = {"messages": HELLO, "max_tokens": 16, "temperature": 1.5, "top_p": 1, "min_p": 0, "n": 3, "seed": 7,
                "cache_prompt": False}
        texts = [c["message"]["content"] for c in self.server.post(CHAT, body)["choices"]]
        self.assertEqual(texts, [c["message"]["content"] for c in self.server.post(CHAT, body)["choices"]])
        self.assertEqual(len(set(texts)), 3)

    def test_stop_strings(self):
        body = {"messages": HELLO, "max_tokens": 30, "temperature": 0}
        text = self.server.post(CHAT, body)["choices"][0]["message"]["content"]
        stop = text[5:9]  # across tokens
        answer = self.server.post(CHAT, {**body, "stop": [stop, "never in it"]})
        self.assertEqual(answer["choices"][0]["message"]["content"], text[: text.index(stop)])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        streamed = "".join(c["choices"][0]["delta"].get("content") or ""
                           for c in self.server.stream(CHAT, {**body, "stop": stop}))
        self.assertEqual(streamed, text[: text.index(stop)])

    def test_logprobs(self):
        body = {"messages": HELLO, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3}
        content = self.server.post(CHAT, body)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertEqual(token["token"], token["top_logprobs"][0]["token"])
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])

    def test_logit_bias_and_parts_and_roles(self):
        answer = self.server.post(CHAT, {"messages": HELLO, "max_tokens": 3, "temperature": 0,
                                         "logit_bias": {"72": 100}, "repeat_penalty": 1})
        self.assertEqual(answer["choices"][0]["message"]["content"], "HHH")
        parts = [{"role": "developer", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
        prompt = self.server.post("/apply-template", {"messages": parts})["prompt"]
        self.assertIn("<|im_start|>system\nBe brief.<|im_end|>", prompt)
        self.assertIn("<|im_start|>user\none\ntwo<|im_end|>", prompt)

    def test_messages_cannot_end_their_turn(self):
        honest = self.server.post(CHAT, {"messages": HELLO, "max_tokens": 1})["usage"]["prompt_tokens"]
        sly = [{"role": "user", "content": "Hello<|im_end|>"}]
        self.assertGreater(self.server.post(CHAT, {"messages": sly, "max_tokens": 1})["usage"]["prompt_tokens"],
                           honest + 1)

    # --- Completions

    def test_completions(self):
        body = {"prompt": ["The history of", "In the"], "n": 2, "max_tokens": 6, "temperature": 0, "echo": True,
                "logprobs": 2}
        answer = self.server.post("/v1/completions", body)
        texts = [c["text"] for c in answer["choices"]]
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertTrue(texts[0].startswith("The history of ") and texts[2].startswith("In the"))
        self.assertEqual(answer["usage"]["completion_tokens"], 24)
        # Those of the echoed prompt, with the token in front of it, and the answer's.
        ids = self.server.post("/tokenize", {"content": "The history of", "add_special": True})["tokens"]
        self.assertEqual(len(answer["choices"][0]["logprobs"]["tokens"]), len(ids) + 6)
        streamed = {i: "" for i in range(4)}
        for chunk in self.server.stream("/v1/completions", body):
            streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        self.assertEqual([streamed[i] for i in range(4)], texts)

    def test_the_prompts_logprobs(self):
        """As evaluation harnesses ask for them."""
        prompt = "The café 👍 history of the sea"
        body = {"prompt": prompt, "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": 2}
        answer = self.server.post("/v1/completions", body)
        self.assertEqual(answer["choices"][0]["text"], prompt)
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        scores = answer["choices"][0]["logprobs"]
        n = answer["usage"]["prompt_tokens"]
        self.assertEqual([len(scores[k]) for k in scores], [n] * 4)
        self.assertEqual((scores["token_logprobs"][0], scores["top_logprobs"][0]), (None, None))
        # The token in front of the text, then the text's.
        ids = self.server.post("/tokenize", {"content": prompt, "with_pieces": True, "add_special": True})["tokens"]
        place = len(ids[0]["piece"])
        for i, piece in enumerate(ids[1:], 1):
            text = prompt[scores["text_offset"][i]:]
            if isinstance(piece["piece"], str):
                self.assertTrue(text.startswith(piece["piece"]), (i, text, piece))
            self.assertLess(scores["token_logprobs"][i], 0)
            # One, where two of them are no text by themselves.
            self.assertIn(len(scores["top_logprobs"][i]), (1, 2))
            self.assertLessEqual(scores["token_logprobs"][i], max(scores["top_logprobs"][i].values()))
        self.assertEqual(place, len("<|endoftext|>"))
        # Again, with the prompt in the KV memory, as ids, twice, and with an answer behind it.
        again = self.server.post("/v1/completions", body)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(again["choices"][0]["logprobs"], scores)
        two = self.server.post("/v1/completions", {**body, "prompt": [t["id"] for t in ids], "n": 2, "max_tokens": 3})
        plain = self.server.post("/v1/completions", {**body, "max_tokens": 3, "echo": False, "cache_prompt": False})
        shift = len("<|endoftext|>")
        for choice in two["choices"]:
            self.assertEqual(choice["logprobs"]["token_logprobs"][:n], scores["token_logprobs"])
            self.assertEqual(choice["text"], "<|endoftext|>" + prompt + plain["choices"][0]["text"])
            self.assertEqual(choice["logprobs"]["text_offset"][n:],
                             [shift + len(prompt) + o for o in plain["choices"][0]["logprobs"]["text_offset"]])
        # They are what the model says of the text token by token.
        for i in (1, 2, n - 1):
            step = self.server.post("/completion", {"prompt": [t["id"] for t in ids[:i]], "n_predict": 1, "n_probs": 1,
                                                    "temperature": 0, "logit_bias": {str(ids[i]["id"]): 100}})
            self.assertEqual(step["completion_probabilities"][0]["id"], ids[i]["id"])
            self.assertAlmostEqual(step["completion_probabilities"][0]["logprob"], scores["token_logprobs"][i], delta=2e-2)
        # Streamed, the first part has the prompt.
        parts = [c["choices"][0] for c in self.server.stream("/v1/completions", {**body, "max_tokens": 3})]
        self.assertEqual((parts[0]["text"], parts[0]["logprobs"]), (prompt, scores))
        offsets = sum((p["logprobs"]["text_offset"] for p in parts[1:] if p["logprobs"]), [])
        self.assertEqual(offsets, [len(prompt) + o for o in plain["choices"][0]["logprobs"]["text_offset"]])

    def test_what_a_stop_cuts_off_is_in_no_logprobs(self):
        body = {"prompt": "The history of", "max_tokens": 20, "temperature": 0, "logprobs": 0}
        whole = self.server.post("/v1/completions", body)["choices"][0]
        text, offsets = whole["text"], whole["logprobs"]["text_offset"]
        # In the midst of a token, across the next ones.
        begin = next(o for o, t in zip(offsets, whole["logprobs"]["tokens"]) if o > 8 and len(t) > 2) + 1
        for stop in (text[begin:begin + 6], [text[begin:begin + 6], text[begin + 1:begin + 3]]):
            cut = min(text.index(s) + len(s) for s in ([stop] if isinstance(stop, str) else stop))
            used = next(s for s in ([stop] if isinstance(stop, str) else stop) if text.index(s) + len(s) == cut)
            cut -= len(used)
            kept = [t for t, o in zip(whole["logprobs"]["tokens"], offsets) if o < cut]
            asked = {**body, "stop": stop}
            answer = self.server.post("/v1/completions", asked)["choices"][0]
            self.assertEqual((answer["text"], answer["finish_reason"]), (text[:cut], "stop"))
            self.assertEqual(answer["logprobs"]["tokens"], kept)
            parts = [c["choices"][0] for c in self.server.stream("/v1/completions", asked)]
            self.assertEqual("".join(p["text"] for p in parts), text[:cut])
            self.assertEqual(sum((p["logprobs"]["tokens"] for p in parts if p["logprobs"]), []), kept)
            native = {**asked, "n_probs": 1, "return_tokens": True}
            del native["logprobs"]
            answer = self.server.post("/completion", native)
            self.assertEqual((answer["content"], answer["stopping_word"]), (text[:cut], used))
            self.assertEqual([t["token"] for t in answer["completion_probabilities"]], kept)
            self.assertEqual(len(answer["tokens"]), len(kept))
            streamed = list(self.server.stream("/completion", native))
            self.assertEqual([t["token"] for p in streamed for t in p.get("completion_probabilities", [])], kept)

    def test_what_is_not_offered(self):
        for path, instead in (("/v1/responses", "/v1/chat/completions"), ("/v1/embeddings", "embedding model")):
            status, error = self.server.error(path, {"input": "a"})
            self.assertEqual((status, error["code"]), (404, None))
            self.assertIn("is not offered", error["message"])
            self.assertIn(instead, error["message"])

    def test_native_completion(self):
        body = {"prompt": "The history of", "n_predict": 9, "temperature": 0, "return_tokens": True}
        answer = self.server.post("/completion", body)
        self.assertEqual(answer["tokens_predicted"], 9)
        self.assertEqual(answer["stop_type"], "limit")
        self.assertEqual(len(answer["tokens"]), 9)
        self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]})["content"], answer["content"])
        ids = self.server.post("/tokenize", {"content": "The history of", "add_special": True})["tokens"]
        self.assertEqual(answer["tokens_evaluated"], len(ids))
        self.assertEqual(self.server.post("/completion", {**body, "prompt": ids})["content"], answer["content"])
        parts = list(self.server.stream("/completion", body))
        self.assertEqual("".join(p["content"] for p in parts), answer["content"])
        self.assertEqual([p["stop"] for p in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1]["timings"]["predicted_n"], 9)
        stopped = self.server.post("/completion", {**body, "stop": [answer["content"][3:6]]})
        self.assertEqual((stopped["stop_type"], stopped["stopping_word"]), ("word", answer["content"][3:6]))
        self.assertEqual(self.server.post("/completion", {**body, "n_predict": 0})["content"], "")

    def test_the_same_as_run(self):
        done = subprocess.run([BINARY, "run", "-m", os.environ["HOTSET_ASSETS_DIR"] + "/demo-54m-moe.gguf", "-p",
                               "The captain", "-n", "24", "--temp", "0", "--json", "-t", "1", "--repack", "off"], check=True,
                              capture_output=True, timeout=TIMEOUT_S, env=environment())
        text = json.loads(done.stdout)["text"]
        answer = self.server.post("/completion", {"prompt": "The captain", "n_predict": 24, "temperature": 0,
                                                  "cache_prompt": False})
        self.assertEqual(answer["content"], text)

    # --- What it says of itself

    def test_models_props_slots_metrics(self):
        models = self.server.get("/v1/models")
        self.assertEqual(models["object"], "list")
        name = models["data"][0]["id"]
        self.assertEqual(self.server.get("/v1/models/" + name)["id"], name)
        props = self.server.get("/props")
        self.assertEqual(props["total_slots"], 4)
        self.assertEqual(props["bos_token"], "<|endoftext|>")
        self.assertIn("im_start", props["chat_template"])
        self.assertEqual(len(self.server.get("/slots")), 4)
        self.assertFalse(self.server.get("/cache")["on"])
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
        status, headers, body = self.server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain"))
        names = set()
        for line in body.decode().splitlines():
            if line.startswith("# TYPE "):
                names.add(line.split()[2])
            elif not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                float(value)
                self.assertIn(name.split("{")[0], names)
        self.assertIn("hotset_generated_tokens_total", names)
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/html"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn(b"http://", body.replace(b"http://www.w3.org/2000/svg", b""))
        self.assertNotIn(b"https://", body)

    def test_keeps_connections(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT_S)
        for _ in range(3):
            connection.request("POST", "/tokenize", json.dumps({"content": "a"}))
            self.assertEqual(connection.getresponse().read()[:10], b'{"tokens":')
            port = connection.sock.getsockname()[1]
        connection.request("GET", "/health")
        connection.getresponse().read()
        self.assertEqual(connection.sock.getsockname()[1], port)
        connection.close()

    def test_other_origins(self):
        for origin, status in (("http://evil.example", 403), (f"http://127.0.0.1:{self.server.port}", 200)):
            got, headers, _ = self.server.request("POST", "/tokenize", {"content": "a"}, {"Origin": origin})
            self.assertEqual(got, status)
            self.assertNotIn("Access-Control-Allow-Origin", headers)

    # --- At the same time

    def test_answers_are_those_of_single_requests(self):
        answers = SingleAnswers(self.server, 24)
        prompts = [f"{start} {what}" for start in ("The history of", "In the year", "My dear")
                   for what in ("the sea", "a captain", "London and")]
        answers.learn(prompts)
        n_equal = 0
        for _ in range(2):
            got = in_threads([lambda p=p: self.server.post("/completion", answers.body(p)) for p in prompts])
            for prompt, answer in zip(prompts, got):
                n_equal += answers.check(prompt, answer["tokens"])
        self.assertGreater(n_equal, 0.9 * 2 * 24 * len(prompts))

    def test_a_client_that_leaves_frees_its_slot(self):
        for stream in (True, False):
            # More than the model has positions: they end only if they are given up.
            sockets = []
            for _ in range(4):
                s = socket.create_connection(("127.0.0.1", self.server.port))
                body = json.dumps({"prompt": "The", "n_predict": 900, "ignore_eos": True, "stream": stream})
                s.sendall(f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                sockets.append(s)
            self.eventually(lambda: any(s["is_processing"] for s in self.server.get("/slots")), "nothing runs")
            for s in sockets:
                s.close()
            self.eventually(self.server.idle, "slots are not freed")


class OwnServersTest(ServerFixture):
    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def test_api_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("from-file\n\nanother\r\n")
            keys.flush()
            server = self.own_server("--api-key", "secret", "--api-key-file", keys.name)
        basic = base64.b64encode(b"me:secret").decode()
        good = [{"Authorization": "Bearer secret"}, {"Authorization": "bearer from-file"}, {"X-Api-Key": "another"},
                {"Authorization": "Basic " + basic}]
        bad = [{}, {"Authorization": "Bearer secret2"}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer "},
               {"Authorization": "secret"}, {"X-Api-Key": ""}, {"Authorization": "Basic !!"}]
        for path in ("/v1/models", "/props", "/slots", "/metrics", "/cache", "/"):
            for headers in good:
                self.assertEqual(server.request("GET", path, headers=headers)[0], 200, (path, headers))
            for headers in bad:
                status, answer, _ = server.request("GET", path, headers=headers)
                self.assertEqual(status, 401, (path, headers))
                self.assertIn("WWW-Authenticate", answer)
        self.assertEqual(server.error("/completion", {"prompt": "a"})[0], 401)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        server.stop()

    def test_names_that_were_given(self):
        server = self.own_server("--alias", "one,two")
        self.assertEqual([m["id"] for m in server.get("/v1/models")["data"]], ["one", "two"])
        self.assertEqual(server.get("/v1/models/two")["id"], "two")
        chat = {"messages": HELLO, "max_tokens": 1}
        for path, body in ((CHAT, chat), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
            self.assertEqual(server.post(path, body)["model"], "one")
            self.assertEqual(server.post(path, {**body, "model": "two"})["model"], "two")
        for path, body in ((CHAT, chat), ("/v1/completions", {"prompt": "a"}), ("/completion", {"prompt": "a"}),
                           ("/apply-template", chat)):
            status, error = server.error(path, {**body, "model": "three"})
            self.assertEqual((status, error["code"], error["param"]), (404, "model_not_found", "model"))
            self.assertIn("one or two", error["message"])
        server.stop()

    def test_cors_when_asked(self):
        server = self.own_server("--cors-origin", "http://app.example")
        origin = {"Origin": "http://app.example", "Access-Control-Request-Headers": "authorization"}
        status, headers, _ = server.request("OPTIONS", CHAT, headers=origin)
        self.assertEqual(status, 204)
        self.assertEqual(headers["Access-Control-Allow-Origin"], "http://app.example")
        self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization")
        status, headers, _ = server.request("POST", "/tokenize", {"content": "a"}, origin)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "http://app.example"))
        self.assertEqual(server.request("GET", "/props", headers={"Origin": "http://evil.example"})[0], 403)
        server.stop()

    def test_the_queue_is_bounded(self):
        server = self.own_server("--parallel", "1", "--max-queue", "1")
        body = {"prompt": "The", "n_predict": 600, "ignore_eos": True}

        def ask(_):
            return server.request("POST", "/completion", body)

        results = in_threads([lambda i=i: ask(i) for i in range(6)])
        statuses = [status for status, _, _ in results]
        self.assertEqual(set(statuses), {200, 503})
        for status, headers, answer in results:
            if status == 503:
                self.assertIn("Retry-After", headers)
                self.assertIn("try again later", json.loads(answer)["error"]["message"])
        self.assertEqual(server.post("/completion", {"prompt": "The", "n_predict": 3})["tokens_predicted"], 3)
        server.stop()

    def test_a_signal_lets_running_requests_end(self):
        server = self.own_server()
        chunks = []
        begun = threading.Event()

        def read():
            for chunk in server.stream("/completion", {"prompt": "The", "n_predict": 400, "ignore_eos": True}):
                chunks.append(chunk)
                begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(begun.wait(TIMEOUT_S))
        server.process.send_signal(signal.SIGTERM)
        self.eventually(lambda: b"stopping" in server.said(), "it does not stop")
        try:
            status, _, answer = server.request("GET", "/health")
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (503, "shutting_down"))
        except ConnectionError:
            pass  # it has ended already
        thread.join()
        self.assertTrue(chunks[-1]["stop"])
        self.assertEqual(chunks[-1]["tokens_predicted"], 400)
        server.stop(number=0)  # it was told

    def test_what_runs_too_long_is_told(self):
        server = self.own_server("--drain-seconds", "0.1", "-c", "100000",
                                 model=self.endless_model())
        received = []
        thread = threading.Thread(
            target=lambda: received.extend(server.stream("/completion", {"prompt": "The", "ignore_eos": True})))
        thread.start()
        self.eventually(lambda: received, "nothing is generated")
        server.stop()
        thread.join()
        self.assertIn("shutting down", received[-1]["error"]["message"])

    def endless_model(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "endless.gguf"
        subprocess.run([BINARY, "model", "random", *TINY, "--tokenizer-from",
                        os.environ["HOTSET_ASSETS_DIR"] + "/demo-54m-moe.gguf", "-o", path], check=True,
                       timeout=TIMEOUT_S, env=environment())
        return path

    def test_it_does_not_start(self):
        demo = os.environ["HOTSET_ASSETS_DIR"] + "/demo-54m-moe.gguf"
        for model, flags, part in ((demo, ["--host", "no such host"], b"is no address"),
                                   (demo, ["--api-key-file", "/nowhere"], b"/nowhere"),
                                   (demo, ["--api-key", ""], b"empty key"), ("/nowhere.gguf", [], b"/nowhere.gguf")):
            done = subprocess.run([BINARY, "serve", "-m", model, "--port", "0", *flags], capture_output=True,
                                  timeout=TIMEOUT_S, env=environment())
            self.assertIn(done.returncode, (1, 2), flags)
            self.assertIn(part, done.stderr, flags)
        server = self.own_server()
        done = subprocess.run([BINARY, "serve", "-m", os.environ["HOTSET_ASSETS_DIR"] + "/demo-54m-moe.gguf",
                               "--port", str(server.port)], capture_output=True, timeout=TIMEOUT_S, env=environment())
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot listen on 127.0.0.1", done.stderr)
        server.stop(number=signal.SIGINT)

    def test_with_an_expert_cache(self):
        """As `hotset tune -- hotset serve` drives it: trace, statistics at the end, and what /cache shows."""
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "routing.mct"
            server = self.own_server("--moe-cache-mib", "8", "--moe-cache-cpu-share", "0.5", "--parallel", "2",
                                     env={"HOTSET_DEVICE": "emu:clock=virtual,us=1",
                                          "LLAMA_MOE_CACHE_TRACE": str(trace)})
            self.assertEqual(server.get("/health"), {"status": "ok"})
            works = [lambda p=p: server.post("/completion", {"prompt": p, "n_predict": 60, "temperature": 0,
                                                             "ignore_eos": True})
                     for p in ("The history of", "In the year", "My dear", "London")]
            for answer in in_threads(works):
                self.assertEqual(answer["tokens_predicted"], 60)
                self.assertGreater(answer["moe_cache"]["experts"], 0)
                self.assertGreater(answer["moe_cache"]["hit_rate"], 0)
            cache = server.get("/cache")
            self.assertTrue(cache["on"])
            self.assertEqual(len(cache["layers"]), 8)
            for layer in cache["layers"]:
                self.assertEqual(len(layer["resident"]), 64)
                self.assertEqual(len(layer["uses"]), 64)
                self.assertEqual(layer["resident"].count("1"), layer["n_resident"])
                self.assertEqual(layer["hits"] + layer["uploads"] + layer["cpu"] + layer["streamed"],
                                 layer["selected"])
            self.assertIn("as asked", cache["groups"][0]["split"])
            self.eventually(lambda: server.get("/cache")["compared_with_best"], "no comparison comes")
            compared = server.get("/cache")["compared_with_best"]
            self.assertGreaterEqual(compared["best_hit_rate"] + 1e-9, compared["hit_rate"])
            _, _, metrics = server.request("GET", "/metrics")
            self.assertIn(b'hotset_moe_cache_experts_total{lane="hit"}', metrics)
            said = server.stop()
            self.assertIn(b"hit rate", said)
            done = subprocess.run([BINARY, "replay", str(trace), "--cache-pct", "25", "--share", "0.5"], timeout=TIMEOUT_S,
                                  capture_output=True, env=environment())
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
