#include "json.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace enginebay {
namespace {

constexpr int kDepth = 64;

class Reader {
 public:
  explicit Reader(const std::string& text) : at_(text.c_str()), begin_(at_), end_(at_ + text.size()) {}

  Json document() {
    Json value = any(0);
    space();
    if (at_ != end_) fail("something after its end");
    return value;
  }

 private:
  const char *at_, *begin_, *end_;

  [[noreturn]] void fail(const char* what) const {
    throw std::invalid_argument("the record is no JSON: " + std::string(what) + " at " + std::to_string(at_ - begin_));
  }
  void space() {
    while (at_ != end_ && std::strchr(" \t\r\n", *at_) && *at_) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  void need(char c) {
    if (!take(c)) fail((std::string("no ") + c).c_str());
  }
  bool word(const char* w) {
    const size_t n = std::strlen(w);
    if (size_t(end_ - at_) < n || std::strncmp(at_, w, n) != 0) return false;
    at_ += n;
    return true;
  }

  Json any(int depth) {
    if (depth > kDepth) fail("nested too deeply");
    space();
    if (at_ == end_) fail("it ends early");
    Json value;
    if (*at_ == '{') return object(depth);
    if (*at_ == '[') return list(depth);
    if (*at_ == '"') {
      value.kind = Json::text;
      value.string = text();
    } else if (word("null")) {
    } else if (word("true") || word("false")) {
      value.kind = Json::boolean;
      value.truth = at_[-2] == 'u';
    } else {
      return number();
    }
    return value;
  }
  Json object(int depth) {
    Json value;
    value.kind = Json::object;
    need('{');
    if (take('}')) return value;
    do {
      space();
      std::string name = text();
      need(':');
      if (value.find(name)) fail("a member twice");
      value.members.emplace_back(std::move(name), any(depth + 1));
    } while (take(','));
    need('}');
    return value;
  }
  Json list(int depth) {
    Json value;
    value.kind = Json::list;
    need('[');
    if (take(']')) return value;
    do value.items.push_back(any(depth + 1));
    while (take(','));
    need(']');
    return value;
  }
  Json number() {
    const char* from = at_;
    bool real = false;
    while (at_ != end_ && *at_ && std::strchr("+-0123456789.eE", *at_)) real |= std::strchr(".eE", *at_++) != nullptr;
    const std::string digits(from, at_);
    if (digits.empty()) fail("an unknown word");
    char* rest = nullptr;
    errno = 0;
    Json value;
    value.kind = real ? Json::real : Json::integer;
    if (real)
      value.number = std::strtod(digits.c_str(), &rest);
    else
      value.whole = std::strtoll(digits.c_str(), &rest, 10);
    if (*rest || errno == ERANGE) fail("a bad number");
    return value;
  }
  unsigned unit() {  // of UTF-16
    unsigned value = 0;
    for (int i = 0; i < 4; ++i) {
      if (at_ == end_ || !std::isxdigit(static_cast<unsigned char>(*at_))) fail("a bad escape");
      value = value * 16 + (*at_ <= '9' ? *at_ - '0' : (*at_ | 32) - 'a' + 10);
      ++at_;
    }
    return value;
  }
  std::string text() {
    if (at_ == end_ || *at_ != '"') fail("no string");
    ++at_;
    std::string value;
    for (;;) {
      if (at_ == end_ || static_cast<unsigned char>(*at_) < 32) fail("a string without end");
      const char c = *at_++;
      if (c == '"') return value;
      if (c != '\\') {
        value += c;
        continue;
      }
      if (at_ == end_) fail("a string without end");
      const char escape = *at_++;
      if (escape == 'u') {
        const unsigned code = unit();
        if (code >= 0x80) fail("a name beyond ASCII");
        value += char(code);
      } else if (escape && std::strchr("\"\\/bfnrt", escape)) {
        switch (escape) {
          case 'b': value += '\b'; break;
          case 'f': value += '\f'; break;
          case 'n': value += '\n'; break;
          case 'r': value += '\r'; break;
          case 't': value += '\t'; break;
          default: value += escape;
        }
      } else {
        fail("a bad escape");
      }
    }
  }
};

}  // namespace

const Json* Json::find(const std::string& name) const {
  for (const auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

const Json& Json::at(const std::string& name, Kind wanted) const {
  const Json* found = find(name);
  if (!found || found->kind != wanted)
    throw std::invalid_argument("the record has no \"" + name + "\", or it is of another kind");
  return *found;
}

Json parse_json(const std::string& text) { return Reader(text).document(); }

}  // namespace enginebay
