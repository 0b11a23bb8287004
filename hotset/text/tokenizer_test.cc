#include "hotset/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "hotset/text/pretokenizer.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

Tokenizer make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *std::move(tokenizer);
}

// Ids 256 and 257 are the merges, then the special tokens.
TokenizerSpec chat_spec() {
  TokenizerSpec spec = byte_level_spec({"h i", "\u00C3 \u00A9"});
  add_token(spec, "<|bos|>", TokenType::kControl);
  add_token(spec, "<|im_end|>", TokenType::kControl);
  add_token(spec, "<tool>", TokenType::kUserDefined);
  add_token(spec, "[PAD]", TokenType::kUnused);
  spec.bos = 258;
  spec.eos = 259;
  return spec;
}

struct BadSpec {
  const char* name;
  std::function<void(TokenizerSpec&)> damage;
  ErrorCode code;
  std::vector<std::string> in_message;
};

class TokenizerSpecCheck : public testing::TestWithParam<BadSpec> {};

TEST_P(TokenizerSpecCheck, NamesFieldFoundAndExpected) {
  const BadSpec& bad = GetParam();
  TokenizerSpec spec = chat_spec();
  bad.damage(spec);
  const auto tokenizer = Tokenizer::create(std::move(spec));
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, bad.code) << tokenizer.error().message;
  for (const std::string& part : bad.in_message) {
    EXPECT_THAT(tokenizer.error().message, HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizer, TokenizerSpecCheck,
    testing::Values(BadSpec{"UnknownModel",
                            [](TokenizerSpec& s) { s.model = "bert"; },
                            ErrorCode::kUnsupported,
                            {"tokenizer.ggml.model", "'bert'", "gpt2, llama"}},
                    BadSpec{"UnknownPretokenizer",
                            [](TokenizerSpec& s) { s.pre = "x"; },
                            ErrorCode::kUnsupported,
                            {"tokenizer.ggml.pre", "'x'", "qwen2"}},
                    BadSpec{"NoTokens",
                            [](TokenizerSpec& s) { s = {.model = "gpt2"}; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.tokens", "found 0"}},
                    BadSpec{"TooFewTypes",
                            [](TokenizerSpec& s) { s.types.pop_back(); },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.token_type", "found 261", "expected 262"}},
                    BadSpec{"TooManyScores",
                            [](TokenizerSpec& s) { s.scores.push_back(0); },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.scores", "found 263", "expected 262"}},
                    BadSpec{"NoScores",
                            [](TokenizerSpec& s) {
                              s.model = "llama";
                              s.scores.clear();
                            },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.scores", "found 0", "expected 262"}},
                    BadSpec{"ScoreNotANumber",
                            [](TokenizerSpec& s) {
                              s.model = "llama";
                              s.scores[5] = std::numeric_limits<float>::quiet_NaN();
                            },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.scores[5]", "nan", "finite"}},
                    BadSpec{"ByteTokenWithoutByte",
                            [](TokenizerSpec& s) {
                              s.model = "llama";
                              s.types[65] = 6;
                            },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.tokens[65]", "'A'", "<0x0A>"}},
                    BadSpec{"UnknownType",
                            [](TokenizerSpec& s) { s.types[7] = 9; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.token_type[7]", "found 9", "expected 1 to 6"}},
                    BadSpec{"DuplicateToken",
                            [](TokenizerSpec& s) { s.tokens[261] = "hi"; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.tokens[261]", "'hi'", "token 256"}},
                    BadSpec{"LongSpecialToken",
                            [](TokenizerSpec& s) { s.tokens[260].assign(1025, 'x'); },
                            ErrorCode::kUnsupported,
                            {"tokenizer.ggml.tokens[260]", "1025", "1024"}},
                    BadSpec{"BosOutOfRange",
                            [](TokenizerSpec& s) { s.bos = 262; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.bos_token_id", "found 262", "expected 0 to 261"}},
                    BadSpec{"NegativePad",
                            [](TokenizerSpec& s) { s.pad = -1; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.padding_token_id", "found -1"}},
                    BadSpec{"AddBosWithoutBos",
                            [](TokenizerSpec& s) {
                              s.bos.reset();
                              s.add_bos = true;
                            },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.add_bos_token", "bos_token_id"}},
                    BadSpec{"AddEosWithoutEos",
                            [](TokenizerSpec& s) {
                              s.eos.reset();
                              s.add_eos = true;
                            },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.add_eos_token", "eos_token_id"}},
                    BadSpec{"MergeWithoutSpace",
                            [](TokenizerSpec& s) { s.merges[1] = "hi"; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.merges[1]", "'hi'", "one space"}},
                    BadSpec{"MergeOfThree",
                            [](TokenizerSpec& s) { s.merges[1] = "h i h"; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.merges[1]", "'h i h'", "one space"}},
                    BadSpec{"MergeOfUnknownToken",
                            [](TokenizerSpec& s) { s.merges[1] = "h hi"; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.merges[1]", "'h hi'", "'hhi'", "262"}},
                    BadSpec{"MergeOutsideTheAlphabet",
                            [](TokenizerSpec& s) { s.merges[0] = "\u4F60 i"; },
                            ErrorCode::kCorrupt,
                            {"tokenizer.ggml.merges[0]", "'\u4F60'"}}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(Tokenizer, SpecialTokensInTextAreTextUnlessParsed) {
  const Tokenizer tokenizer = make(chat_spec());
  EXPECT_THAT(*tokenizer.encode("hi<|im_end|>", {.parse_special = true}), ElementsAre(256, 259));
  const auto plain = tokenizer.encode("hi<|im_end|>");
  EXPECT_THAT(*plain, testing::Not(testing::Contains(259)));
  EXPECT_EQ(tokenizer.decode(*plain), "hi<|im_end|>");
  // User-defined ones always match.
  EXPECT_THAT(*tokenizer.encode("hi<tool>hi"), ElementsAre(256, 260, 256));
}

TEST(Tokenizer, BosAndEosFollowTheModelsRule) {
  TokenizerSpec spec = chat_spec();
  const EncodeOptions both = {.add_bos = true, .add_eos = true};
  EXPECT_THAT(*make(spec).encode("hi", both), ElementsAre(256)) << "gpt-2 does not by default";
  spec.pre = "llama-bpe";
  EXPECT_THAT(*make(spec).encode("hi", both), ElementsAre(258, 256)) << "llama-bpe does";
  EXPECT_THAT(*make(spec).encode("", both), ElementsAre(258));
  EXPECT_THAT(*make(spec).encode("hi"), ElementsAre(256)) << "not asked for";
  spec.add_bos = false;
  EXPECT_THAT(*make(spec).encode("hi", both), ElementsAre(256)) << "the file says no";
  spec.add_bos = true;
  spec.add_eos = true;
  EXPECT_THAT(*make(spec).encode("hi", both), ElementsAre(258, 256, 259));
  spec.add_bos.reset();
  spec.bos.reset();
  EXPECT_FALSE(make(spec).adds_bos()) << "usual, but there is none";

  const Tokenizer llama = make(sentencepiece_spec({" ", "a"}));
  EXPECT_EQ(llama.bos(), 1);
  EXPECT_EQ(llama.eos(), 2);
  EXPECT_EQ(llama.unk(), 0);
  EXPECT_EQ(llama.encode("a", both)->front(), 1);
}

TEST(Tokenizer, PiecesAndLookups) {
  const Tokenizer tokenizer = make(chat_spec());
  EXPECT_EQ(tokenizer.n_tokens(), 262);
  EXPECT_EQ(tokenizer.piece(256), "hi");
  EXPECT_EQ(tokenizer.piece(' '), " ");
  EXPECT_EQ(tokenizer.piece(259), "<|im_end|>");
  EXPECT_EQ(tokenizer.piece(261), "[PAD]");
  EXPECT_EQ(tokenizer.type(260), TokenType::kUserDefined);
  EXPECT_EQ(tokenizer.find_token("<tool>"), 260);
  EXPECT_EQ(tokenizer.find_token("<none>"), std::nullopt);
  for (const int32_t id : {-1, 262}) {
    ASSERT_FALSE(tokenizer.piece(id));
    EXPECT_THAT(tokenizer.piece(id).error().message, HasSubstr(std::to_string(id)));
    EXPECT_EQ(tokenizer.type(id).error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(tokenizer.decode(Ids{256, id}));
  }
}

TEST(Tokenizer, GenerationEndsAtEosAndKnownEndsOfTurns) {
  TokenizerSpec spec = chat_spec();
  spec.eos = 258;
  spec.eot = 260;
  EXPECT_THAT(make(spec).end_of_generation_ids(), ElementsAre(258, 259, 260));
  EXPECT_TRUE(make(spec).is_end_of_generation(259));
  EXPECT_FALSE(make(spec).is_end_of_generation(256));
  EXPECT_FALSE(make(spec).is_end_of_generation(-1));
  // As text it is no end.
  spec.types[259] = static_cast<int32_t>(TokenType::kNormal);
  EXPECT_FALSE(make(spec).is_end_of_generation(259));
}

TEST(Tokenizer, EndOfMessageIsNoEndWhereMoreMessagesFollow) {
  TokenizerSpec spec = chat_spec();
  add_token(spec, "<|end|>", TokenType::kControl);
  EXPECT_TRUE(make(spec).is_end_of_generation(262));
  add_token(spec, "<|return|>", TokenType::kControl);
  add_token(spec, "<|call|>", TokenType::kControl);
  EXPECT_FALSE(make(spec).is_end_of_generation(262));
  EXPECT_TRUE(make(spec).is_end_of_generation(263));
  EXPECT_TRUE(make(spec).is_end_of_generation(264));
}

TEST(Tokenizer, DecodeOptions) {
  const Tokenizer bpe = make(chat_spec());
  const Ids ids = {258, 256, 260, 259};
  EXPECT_EQ(bpe.decode(ids), "hi<tool>");
  EXPECT_EQ(bpe.decode(ids, {.render_special = true}), "<|bos|>hi<tool><|im_end|>");

  const Tokenizer llama = make(sentencepiece_spec({" ", "a", " a"}));
  const Ids word = {261, 261};
  EXPECT_EQ(llama.decode(word), "a a");
  EXPECT_EQ(llama.decode(word, {.continues_text = true}), " a a");
}

TEST(Tokenizer, ArbitraryBytesComeBack) {
  constexpr uint64_t seed = 20261207;
  Random random(seed);
  for (int round = 0; round < 400; ++round) {
    const auto names = known_pretokenizers();
    TokenizerSpec spec = random_byte_level_spec(
        random, 30, std::string(names[static_cast<size_t>(round) % names.size()]));
    add_token(spec, "<|x|>", TokenType::kControl);
    add_token(spec, "<y>", TokenType::kUserDefined);
    const Tokenizer tokenizer = make(std::move(spec));
    for (int i = 0; i < 10; ++i) {
      std::string text = i % 2 == 0 ? random_text(random, random.below(60))
                                    : random_bytes(random, random.below(60));
      text.insert(random.below(text.size() + 1), random.below(2) == 0 ? "<|x|>" : "<y>");
      for (const bool special : {false, true}) {
        const auto ids = tokenizer.encode(text, {.parse_special = special});
        ASSERT_TRUE(ids) << ids.error().message;
        ASSERT_EQ(tokenizer.decode(*ids, {.render_special = true}), text)
            << "seed " << seed << " round " << round;
      }
    }
  }
}

TEST(Tokenizer, StaysValidWhenMoved) {
  Tokenizer first = make(chat_spec());
  const Tokenizer second = std::move(first);
  EXPECT_THAT(*second.encode("hi<tool><|im_end|>", {.parse_special = true}),
              ElementsAre(256, 260, 259));
  EXPECT_EQ(second.find_token("hi"), 256);
}

TEST(StreamDecoder, WaitsForWholeCharacters) {
  const Tokenizer tokenizer = make(chat_spec());
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xBD), "");
  EXPECT_EQ(decoder.push(0xA0), "\u4F60");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push('b'), "\uFFFDb") << "what cannot become text";
  EXPECT_EQ(decoder.push(259), "") << "a control token";
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_FALSE(decoder.push(-1));
}

TEST(StreamDecoder, GivesTheDecodedTextInValidPieces) {
  constexpr uint64_t seed = 20261209;
  Random random(seed);
  const Tokenizer tokenizer = make(random_byte_level_spec(random, 50, "gpt-2"));
  for (int round = 0; round < 500; ++round) {
    Ids ids(random.below(40));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random.below(static_cast<uint64_t>(tokenizer.n_tokens())));
    }
    std::string expected;
    const std::string bytes = *tokenizer.decode(ids);
    for (std::string_view rest = bytes; !rest.empty();) {
      const Utf8Step step = next_utf8(rest);
      expected +=
          step.kind == Utf8Kind::kValid ? rest.substr(0, step.n_bytes) : kReplacementCharacter;
      rest.remove_prefix(step.n_bytes);
    }
    StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) {
      const auto text = decoder.push(id);
      ASSERT_TRUE(text);
      ASSERT_EQ(valid_utf8_prefix(*text), text->size()) << "seed " << seed << " round " << round;
      streamed += *text;
    }
    streamed += decoder.finish();
    ASSERT_EQ(streamed, expected) << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace hotset::text
