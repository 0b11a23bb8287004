#include "hotset/server/reply.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/server/stop_testing.h"
#include "hotset/text/text_test_util.h"

namespace hotset::server {
namespace {

constexpr uint64_t kSeed = 5;

// A reply as its client puts it together.
struct Told {
  std::string content;
  std::string reasoning;
  std::vector<ReplyToken> tokens;
  std::string stop;
  StopReason reason = StopReason::kEnd;
};

Told tell(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids, ReplyOptions options) {
  auto channel = std::make_shared<ReplyChannel>();
  ReplySink sink(tokenizer, channel, std::move(options));
  sink.on_prompt({});
  bool goes_on = true;
  for (size_t i = 0; i < ids.size() && goes_on; ++i) goes_on = sink.on_token({.id = ids[i]});
  sink.on_end({.reason = goes_on ? StopReason::kLength : StopReason::kStop});
  Told told;
  while (auto event = channel->take(0)) {
    told.content += event->content;
    told.reasoning += event->reasoning;
    for (ReplyToken& token : event->tokens) told.tokens.push_back(std::move(token));
    if (!event->end) continue;
    told.stop = event->stop;
    told.reason = event->end->reason;
  }
  return told;
}

// Of every byte the place in the text, in bytes and in characters, of the character that it is of.
struct Place {
  size_t begin = 0;
  size_t offset = 0;
};
std::vector<Place> places_of(std::string_view bytes) {
  std::vector<Place> places;
  Place next;
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes);
    places.insert(places.end(), step.n_bytes, next);
    next.begin += step.kind == Utf8Kind::kValid ? step.n_bytes : 3;
    ++next.offset;
    bytes.remove_prefix(step.n_bytes);
  }
  return places;
}

// Tokens of one to many bytes, also parts of characters.
text::Tokenizer small_vocabulary(Random& random) {
  return *text::Tokenizer::create(text::random_byte_level_spec(random, 40, "gpt-2"));
}

std::vector<int32_t> random_ids(Random& random, const text::Tokenizer& tokenizer) {
  constexpr std::string_view kBytes = "aab \xC3\xA9\xF0\x9F\x98\x80";
  std::vector<int32_t> ids(1 + random.below(20));
  for (int32_t& id : ids) {
    const bool is_merge = random.below(2) == 0;
    id = is_merge ? static_cast<int32_t>(
                        256 + random.below(static_cast<uint64_t>(tokenizer.n_tokens() - 256)))
                  : static_cast<unsigned char>(kBytes[random.below(kBytes.size())]);
  }
  return ids;
}

std::vector<std::string> random_stops(Random& random) {
  std::vector<std::string> stops(1 + random.below(3));
  for (std::string& stop : stops) {
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      append_utf8(stop, U"ab .\n1é\uFFFD"[random.below(8)]);
    }
  }
  return stops;
}

TEST(ReplySink, StopsWhereTheWholeTextSaysHoweverItIsCutIntoTokens) {
  int n_found = 0;
  for (uint64_t seed = kSeed; seed < kSeed + 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const text::Tokenizer tokenizer = small_vocabulary(random);
    const std::vector<int32_t> ids = random_ids(random, tokenizer);
    const std::vector<std::string> stops = random_stops(random);
    std::string bytes;
    std::vector<size_t> begins;
    for (const int32_t id : ids) {
      begins.push_back(bytes.size());
      bytes += token_bytes(tokenizer, id);
    }
    const std::string text = valid_text(bytes);
    const FoundStop found = naive_find(text, stops);
    const Told told = tell(tokenizer, ids, {.stop = stops, .keeps_tokens = true});
    ASSERT_EQ(told.content, text.substr(0, found.begin));
    ASSERT_EQ(told.stop, found.stop);
    ASSERT_EQ(told.reason, found.stop.empty() ? StopReason::kLength : StopReason::kStop);
    n_found += found.stop.empty() ? 0 : 1;
    // A token is there if any of its text is left.
    const std::vector<Place> places = places_of(bytes);
    size_t n_kept = 0;
    while (n_kept < ids.size() && places[begins[n_kept]].begin < found.begin) ++n_kept;
    ASSERT_EQ(told.tokens.size(), n_kept);
    for (size_t i = 0; i < n_kept; ++i) {
      ASSERT_EQ(told.tokens[i].token.id, ids[i]);
      ASSERT_EQ(told.tokens[i].text_offset, places[begins[i]].offset) << i;
    }
  }
  EXPECT_GT(n_found, 500);
}

TEST(ReplySink, CutsTheTokensOfAChatBehindWhatItThinks) {
  const text::Tokenizer tokenizer = *text::Tokenizer::create(text::byte_level_spec({}));
  const text::ReplyFormat format{.reasoning_begin = "<think>", .reasoning_end = "</think>"};
  const std::string thinks = "<think>ab<a</think>\n";
  for (uint64_t seed = kSeed; seed < kSeed + 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::string says = "a";
    for (uint64_t n = random.below(12); n > 0; --n) says += "ab<t"[random.below(4)];
    std::vector<std::string> stops(1 + random.below(2));
    for (std::string& stop : stops) {
      for (uint64_t n = 1 + random.below(3); n > 0; --n) stop += "ab<"[random.below(3)];
    }
    const Told told = tell(tokenizer, *tokenizer.encode(thinks + says),
                           {.stop = stops, .keeps_tokens = true, .format = format});
    const FoundStop found = naive_find(says, stops);
    ASSERT_EQ(told.reasoning, "ab<a");
    ASSERT_EQ(told.content, says.substr(0, found.begin));
    // Each token is a letter.
    ASSERT_EQ(told.tokens.size(), thinks.size() + told.content.size());
  }
}

TEST(ReplySink, WithoutAStopTokensDoNotWait) {
  const text::Tokenizer tokenizer = *text::Tokenizer::create(text::byte_level_spec({}));
  auto channel = std::make_shared<ReplyChannel>();
  ReplySink sink(tokenizer, channel, {.keeps_tokens = true});
  EXPECT_TRUE(sink.on_token({.id = 0xC3}));
  const auto event = channel->take(0);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->content, "");
  EXPECT_EQ(event->tokens.size(), 1);
}

TEST(ReplySink, EchoesThePromptWithItsTokens) {
  const text::Tokenizer tokenizer = *text::Tokenizer::create(text::byte_level_spec({}));
  auto channel = std::make_shared<ReplyChannel>();
  ReplySink sink(tokenizer, channel,
                 {.stop = {"a"},  // stops nothing of the prompt
                  .keeps_tokens = true,
                  .echo = Echo{.text = "aé", .has_hidden_token = true}});
  const std::vector<GeneratedToken> prompt = {
      {.id = 'x'}, {.id = 'a', .logprob = -1}, {.id = 0xC3, .logprob = -2}, {.id = 0xA9}};
  sink.on_prompt(prompt);
  sink.on_token({.id = 'b'});
  sink.on_end({.reason = StopReason::kLength});
  const ReplyEvent echo = *channel->take(0);
  EXPECT_EQ(echo.content, "aé");
  ASSERT_EQ(echo.tokens.size(), 4);
  const std::array<size_t, 4> offsets = {0, 0, 1, 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(echo.tokens[i].text_offset, offsets[i]) << i;
    EXPECT_EQ(echo.tokens[i].has_logprob, i > 0);
  }
  const ReplyEvent reply = *channel->take(0);
  ASSERT_EQ(reply.tokens.size(), 1);
  EXPECT_EQ(reply.tokens[0].text_offset, 2);
}

}  // namespace
}  // namespace hotset::server
