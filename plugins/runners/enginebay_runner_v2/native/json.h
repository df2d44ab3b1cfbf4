// A small strict reader of JSON: what a record is written in. Integers stay integers; deep nesting is refused.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace enginebay {

struct Json {
  enum Kind { null, boolean, integer, real, text, list, object } kind = null;
  bool truth = false;
  int64_t whole = 0;
  double number = 0;
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  const Json* find(const std::string& name) const;      // of an object; null when it has no such member
  const Json& at(const std::string& name, Kind kind) const;  // throws std::invalid_argument
};

Json parse_json(const std::string& text);  // throws std::invalid_argument with the offset

}  // namespace enginebay
