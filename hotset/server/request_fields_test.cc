#include "hotset/server/request_fields.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hotset/engine/run/sampler_settings.h"
#include "hotset/server/api_requests.h"

namespace hotset::server {
namespace {

using testing::HasSubstr;

struct Named {
  Endpoint endpoint;
  const char* name;
  Json body;  // of a request that is right
};

std::vector<Named> endpoints() {
  const Json messages = Json::parse(R"([{"role":"user","content":"hi"}])");
  return {{Endpoint::kChat, "chat", {{"messages", messages}}},
          {Endpoint::kCompletions, "completions", {{"prompt", "a"}}},
          {Endpoint::kNative, "`/completion`", {{"prompt", "a"}}},
          {Endpoint::kTokenize, "`/tokenize`", {{"content", "a"}}},
          {Endpoint::kDetokenize, "`/detokenize`", {{"tokens", Json::array({1})}}}};
}

// The error of a request; nothing if it is right.
std::optional<ApiError> why_not(Endpoint endpoint, const Json& body) {
  const std::string text = body.dump();
  const auto error_of = [](const auto& result) {
    return result ? std::optional<ApiError>() : std::optional(result.error());
  };
  switch (endpoint) {
    case Endpoint::kChat:
      return error_of(parse_chat_request(text, {}));
    case Endpoint::kCompletions:
      return error_of(parse_completion_request(text, {}));
    case Endpoint::kNative:
      return error_of(parse_native_request(text, {}));
    case Endpoint::kTokenize:
      return error_of(parse_tokenize_request(text));
    case Endpoint::kDetokenize:
      return error_of(parse_detokenize_request(text, 100));
  }
  return std::nullopt;
}

TEST(RequestFields, AreRefusedUnlessTheyAreKnown) {
  for (const Named& e : endpoints()) {
    EXPECT_FALSE(why_not(e.endpoint, e.body)) << e.name;
    // Those that other servers have; and one that nobody has.
    for (const char* name : {"guided_json", "guided_regex", "structured_outputs",
                             "web_search_options", "temprature"}) {
      Json body = e.body;
      body[name] = nullptr;
      EXPECT_FALSE(why_not(e.endpoint, body)) << e.name << " " << name;
      body[name] = {{"a", 1}};
      const auto error = why_not(e.endpoint, body);
      ASSERT_TRUE(error) << e.name << " " << name;
      EXPECT_EQ(error->status, 400);
      EXPECT_EQ(error->param, name);
      EXPECT_EQ(error->code, "unsupported_parameter");
      EXPECT_EQ(error->message,
                fmt::format("{}: found an object, but hotset does not support this field", name));
    }
  }
}

TEST(RequestFields, AreTakenAsTheTableSays) {
  // No field takes an object with this in it, and any that is read says so.
  const Json wrong = {{"no such thing", Json::array({1})}};
  for (const Named& e : endpoints()) {
    for (const RequestField& field : request_fields(e.endpoint)) {
      SCOPED_TRACE(fmt::format("{} {}", e.name, field.name));
      Json body = e.body;
      body[field.name] = wrong;
      const auto error = why_not(e.endpoint, body);
      if (field.use == FieldUse::kIgnored) {
        EXPECT_FALSE(error);
        continue;
      }
      // What goes to the template is the template's.
      if (field.name == "chat_template_kwargs") continue;
      ASSERT_TRUE(error);
      EXPECT_TRUE(error->param.starts_with(field.name)) << error->param;
      EXPECT_EQ(error->code == "unsupported_parameter",
                field.use == FieldUse::kNeutral || field.name == "stream_options");
      if (field.use != FieldUse::kNeutral) continue;
      for (const Json& neutral : Json::parse(field.neutral)) {
        body[field.name] = neutral;
        EXPECT_FALSE(why_not(e.endpoint, body)) << neutral;
      }
    }
  }
}

TEST(RequestFields, HaveEverySettingOfTheSampler) {
  std::vector<std::string> names = engine::predict_setting().fields;
  for (const auto& setting : engine::sampler_settings()) {
    names.insert(names.end(), setting.info.fields.begin(), setting.info.fields.end());
  }
  EXPECT_GE(names.size(), 10U);
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions, Endpoint::kNative}) {
    for (const std::string& name : names) {
      const auto fields = request_fields(endpoint);
      const auto field = std::ranges::find(fields, name, &RequestField::name);
      ASSERT_NE(field, fields.end()) << name;
      EXPECT_EQ(field->use, FieldUse::kUsed) << name;
    }
  }
}

TEST(RequestFields, MaySayThatTheyDoNothing) {
  const Named chat = endpoints()[0];
  for (const auto& [name, changes, neutral] : std::vector<std::tuple<const char*, Json, Json>>{
           {"min_tokens", 5, 0},
           {"stop_token_ids", Json::array({7}), Json::array()},
           {"typical_p", 0.5, 1.0},
           {"best_of", 2, 1}}) {
    Json body = chat.body;
    body[name] = neutral;
    EXPECT_FALSE(why_not(chat.endpoint, body)) << name;
    body[name] = changes;
    const auto error = why_not(chat.endpoint, body);
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->param, name);
    EXPECT_THAT(error->message, HasSubstr("would be accepted"));
  }
}

// The lines of docs/api.md's tables: fields of one kind, and where they may be.
std::vector<std::string> table(FieldUse use) {
  const std::vector<Named> all = endpoints();
  std::map<std::string, std::string> where;  // by "field | accepted"
  std::map<std::string, size_t> n_endpoints;
  for (size_t e = 0; e < 3; ++e) {
    for (const RequestField& field : request_fields(all[e].endpoint)) {
      if (field.use != use) continue;
      std::string accepted;
      if (use == FieldUse::kNeutral) {
        for (const Json& value : Json::parse(field.neutral)) {
          accepted += fmt::format("{}`{}`", accepted.empty() ? "" : " or ", value.dump());
        }
      }
      const std::string key = fmt::format("| `{}` | {} |", field.name, accepted);
      std::string& text = where[key];
      text += fmt::format("{}{}", text.empty() ? "" : ", ", all[e].name);
      if (++n_endpoints[key] == 3) text = "all";
    }
  }
  std::vector<std::string> lines;
  for (const auto& [key, text] : where) lines.push_back(fmt::format("{} {} |", key, text));
  return lines;
}

TEST(RequestFields, AreInTheDocuments) {
  const char* assets = std::getenv("HOTSET_ASSETS_DIR");
  if (assets == nullptr) GTEST_SKIP() << "HOTSET_ASSETS_DIR is not set";
  std::ifstream in(std::string(assets) + "/../docs/api.md");
  const std::string docs{std::istreambuf_iterator<char>(in), {}};
  ASSERT_FALSE(docs.empty());
  std::set<std::string> used;
  std::string ignored;
  for (const Named& e : endpoints()) {
    for (const RequestField& field : request_fields(e.endpoint)) {
      if (field.use == FieldUse::kUsed) used.insert(std::string(field.name));
    }
  }
  for (const std::string& name : used) {
    EXPECT_TRUE(docs.contains("`" + name + "`")) << "docs/api.md does not mention " << name;
  }
  for (const RequestField& field : request_fields(Endpoint::kChat)) {
    if (field.use != FieldUse::kIgnored) continue;
    ignored += fmt::format("{}`{}`", ignored.empty() ? "" : ", ", field.name);
  }
  std::string flat = docs;
  std::ranges::replace(flat, '\n', ' ');
  EXPECT_TRUE(flat.contains(ignored)) << "docs/api.md lacks\n" << ignored;
  for (const std::string& line : table(FieldUse::kNeutral)) {
    EXPECT_TRUE(docs.contains(line + "\n")) << "docs/api.md lacks\n" << line;
  }
}

}  // namespace
}  // namespace hotset::server
