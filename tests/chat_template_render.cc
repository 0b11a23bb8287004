// Renders chat templates for chat_template_test.py. Reads a JSON object per line from stdin:
// "template", "messages", and as wanted "tools", "documents", "variables", "add_generation_prompt",
// "bos_token", "eos_token", "now" ([year, month, day, hour, minute, second, weekday from 0 for
// Monday, day of the year from 1]). Writes one per line: "text" or "error".
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "hotset/text/chat_template.h"
#include "hotset/text/text_marks.h"

namespace {

using hotset::Result;
using hotset::text::ChatTemplate;
using nlohmann::ordered_json;

std::string field(const ordered_json& request, const char* name) {
  return request.contains(name) ? request[name].dump() : "";
}

// One sandbox for all requests.
std::optional<ChatTemplate> g_template;

hotset::Status use_template(const ordered_json& request) {
  std::string source = request.at("template").get<std::string>();
  if (g_template && g_template->source() == source) return {};
  if (g_template) return g_template->replace_source(std::move(source));
  HOTSET_TRY(g_template,
             ChatTemplate::create(std::move(source), {.bos_token = request.value("bos_token", ""),
                                                      .eos_token = request.value("eos_token", ""),
                                                      .special_tokens = {"<|im_end|>"}}));
  return {};
}

Result<std::string> render(const ordered_json& request) {
  HOTSET_RETURN_IF_ERROR(use_template(request));
  hotset::text::ChatInput input = {.messages = field(request, "messages"),
                                   .tools = field(request, "tools"),
                                   .documents = field(request, "documents"),
                                   .variables = field(request, "variables")};
  input.add_generation_prompt = request.value("add_generation_prompt", true);
  const auto now = request.at("now").get<std::vector<int>>();
  input.now.tm_year = now.at(0) - 1900;
  input.now.tm_mon = now.at(1) - 1;
  input.now.tm_mday = now.at(2);
  input.now.tm_hour = now.at(3);
  input.now.tm_min = now.at(4);
  input.now.tm_sec = now.at(5);
  input.now.tm_wday = (now.at(6) + 1) % 7;
  input.now.tm_yday = now.at(7) - 1;
  HOTSET_TRY(const std::string rendered, g_template->render(input));
  return hotset::text::without_marks(rendered);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto result = render(ordered_json::parse(line));
    ordered_json answer;
    if (result) {
      answer["text"] = *result;
    } else {
      answer["error"] = result.error().message;
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
