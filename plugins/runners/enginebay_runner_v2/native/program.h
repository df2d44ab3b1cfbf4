// A captured step as a list of calls: read once from its record, run without Python between the operators.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "json.h"

namespace enginebay {

// An argument of a call: a value, the place of one, or a list of such.
struct Argument {
  enum Kind { fixed, place, list } kind = fixed;
  c10::IValue value;
  int64_t at = -1;
  std::vector<Argument> items;
  c10::TypePtr element;
};

struct Call {
  enum Kind { operation, size, item, add, sub, mul, floordiv } kind = operation;
  std::string name, target;
  std::optional<c10::OperatorHandle> handle;
  std::vector<Argument> arguments;
  int64_t result = -1;
  std::vector<int64_t> last_uses;  // places that nothing after this call reads
};

class Program : public torch::CustomClassHolder {
 public:
  explicit Program(const std::string& record);

  // Constants and caches by name; a name that was bound before is replaced. Not while a step runs.
  void bind(const c10::Dict<std::string, at::Tensor>& tensors);
  // The inputs that are not bound, in the record's order → the outputs.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;
  // As run; seconds of each call, in the order of calls().
  std::vector<double> profile(const std::vector<at::Tensor>& inputs) const;
  std::vector<std::string> calls() const;   // "name operator"
  std::vector<std::string> inputs() const;  // what run takes now

 private:
  std::map<std::string, int64_t> places_;
  std::vector<std::string> inputs_;
  std::vector<Call> calls_;
  std::vector<int64_t> outputs_;
  std::vector<std::string> names_;    // of constants and inputs, by place
  std::vector<c10::IValue> bound_;    // by place: constants and inputs

  int64_t define(const std::string& name);
  void read(const Json& record);
  std::vector<at::Tensor> execute(const std::vector<at::Tensor>& inputs, std::vector<double>* seconds) const;
};

// record_reader.cpp
Call read_call(const Json& node, const std::map<std::string, int64_t>& places);
void collect_places(const Argument& argument, std::vector<int64_t>& into);

}  // namespace enginebay
