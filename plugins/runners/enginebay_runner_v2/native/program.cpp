#include "program.h"

#include <ATen/core/List.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <set>
#include <stdexcept>

namespace enginebay {
namespace {

using c10::IValue;
using Frame = std::vector<IValue>;

IValue value_of(const Argument& argument, const Frame& frame);

template <class X, class Get>
IValue list_of(const Argument& argument, const Frame& frame, const Get& get) {
  c10::List<X> list;
  list.reserve(argument.items.size());
  for (const Argument& item : argument.items) list.push_back(get(value_of(item, frame)));
  return list;
}

IValue value_of(const Argument& argument, const Frame& frame) {
  if (argument.kind == Argument::fixed) return argument.value;
  if (argument.kind == Argument::place) return frame[argument.at];
  switch (argument.element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return list_of<int64_t>(argument, frame, [](const IValue& v) { return v.toInt(); });
    case c10::TypeKind::FloatType:
      return list_of<double>(argument, frame, [](const IValue& v) { return v.toDouble(); });
    case c10::TypeKind::BoolType:
      return list_of<bool>(argument, frame, [](const IValue& v) { return v.toBool(); });
    case c10::TypeKind::TensorType:
      return list_of<at::Tensor>(argument, frame, [](const IValue& v) { return v.toTensor(); });
    case c10::TypeKind::OptionalType:
      return list_of<std::optional<at::Tensor>>(argument, frame, [](const IValue& v) { return v.toOptional<at::Tensor>(); });
    default:
      TORCH_CHECK(false, "a list of ", argument.element->annotation_str(), " cannot be an argument");
  }
}

int64_t whole(const IValue& value) {
  TORCH_CHECK(value.isInt(), "a whole number is wanted, and this is ", value.tagKind());
  return value.toInt();
}

IValue item_of(const IValue& from, int64_t index) {
  if (from.isTuple()) {
    const auto& elements = from.toTupleRef().elements();
    TORCH_CHECK(index >= 0 && size_t(index) < elements.size(), "there is no item ", index);
    return elements[index];
  }
  TORCH_CHECK(from.isTensorList(), "only operators with several results have items");
  const auto list = from.toTensorList();
  TORCH_CHECK(index >= 0 && size_t(index) < list.size(), "there is no item ", index);
  return list.get(index);
}

IValue perform(const Call& call, const Frame& frame, torch::jit::Stack& stack) {
  if (call.kind != Call::operation) {
    const IValue first = value_of(call.arguments[0], frame);
    const int64_t b = whole(value_of(call.arguments[1], frame));
    if (call.kind == Call::item) return item_of(first, b);
    if (call.kind == Call::size) return first.toTensor().size(b);
    const int64_t a = whole(first);
    if (call.kind == Call::add) return a + b;
    if (call.kind == Call::sub) return a - b;
    if (call.kind == Call::mul) return a * b;
    TORCH_CHECK(b != 0, "division by zero");
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
  }
  stack.clear();
  for (const Argument& argument : call.arguments) stack.push_back(value_of(argument, frame));
  call.handle->callBoxed(stack);
  if (stack.size() == 1) return std::move(stack[0]);
  if (stack.empty()) return {};
  return c10::ivalue::Tuple::create(std::vector<IValue>(stack.begin(), stack.end()));
}

}  // namespace

Program::Program(const std::string& record) {
  try {
    read(parse_json(record));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

int64_t Program::define(const std::string& name) {
  const int64_t place = int64_t(places_.size());
  if (!places_.emplace(name, place).second) throw std::invalid_argument("the record names two things '" + name + "'");
  return place;
}

void Program::read(const Json& record) {
  if (record.at("format", Json::integer).whole != 1) throw std::invalid_argument("the record is of another format than 1");
  const auto texts = [&](const char* member) {
    std::vector<std::string> found;
    for (const Json& item : record.at(member, Json::list).items) {
      if (item.kind != Json::text) throw std::invalid_argument(std::string(member) + " of the record are names");
      found.push_back(item.string);
    }
    return found;
  };
  inputs_ = texts("inputs");
  names_ = inputs_;
  for (std::string& name : texts("constants")) names_.push_back(std::move(name));
  for (const std::string& name : names_) define(name);
  bound_.resize(names_.size());
  for (const Json& node : record.at("nodes", Json::list).items) {
    calls_.push_back(read_call(node, places_));
    calls_.back().result = define(calls_.back().name);
  }
  for (const std::string& name : texts("outputs")) {
    if (!places_.count(name)) throw std::invalid_argument("nothing is named '" + name + "', and it is an output");
    outputs_.push_back(places_[name]);
  }
  std::set<int64_t> needed(outputs_.begin(), outputs_.end());
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    std::vector<int64_t> used = {call->result};
    for (const Argument& argument : call->arguments) collect_places(argument, used);
    for (const int64_t place : used)
      if (needed.insert(place).second) call->last_uses.push_back(place);
  }
}

void Program::bind(const c10::Dict<std::string, at::Tensor>& tensors) {
  for (const auto& entry : tensors) {
    const auto found = places_.find(entry.key());
    TORCH_CHECK_VALUE(found != places_.end() && size_t(found->second) < bound_.size(), "the program has no input or constant '",
                      entry.key(), "'");
    bound_[found->second] = entry.value();
  }
}

std::vector<std::string> Program::inputs() const {
  std::vector<std::string> free;
  for (size_t place = 0; place < inputs_.size(); ++place)
    if (bound_[place].isNone()) free.push_back(inputs_[place]);
  return free;
}

std::vector<std::string> Program::calls() const {
  std::vector<std::string> found;
  for (const Call& call : calls_) found.push_back(call.name + " " + call.target);
  return found;
}

std::vector<at::Tensor> Program::execute(const std::vector<at::Tensor>& inputs, std::vector<double>* seconds) const {
  c10::InferenceMode guard;
  Frame frame(bound_);
  frame.resize(places_.size());
  size_t taken = 0;
  for (size_t place = 0; place < bound_.size(); ++place) {
    if (!frame[place].isNone()) continue;
    TORCH_CHECK_VALUE(place < inputs_.size(), "constant '", names_[place], "' is not bound");
    TORCH_CHECK_VALUE(taken < inputs.size(), "the step takes ", Program::inputs().size(), " inputs, and got ", inputs.size());
    frame[place] = inputs[taken++];
  }
  TORCH_CHECK_VALUE(taken == inputs.size(), "the step takes ", taken, " inputs, and got ", inputs.size());
  torch::jit::Stack stack;
  for (const Call& call : calls_) {
    const auto before = seconds ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    try {
      frame[call.result] = perform(call, frame, stack);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "node ", call.name, " (", call.target, "): ", error.what_without_backtrace());
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "node ", call.name, " (", call.target, "): ", error.what());
    }
    for (const int64_t place : call.last_uses) frame[place] = IValue();
    if (seconds) seconds->push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  std::vector<at::Tensor> outputs;
  for (const int64_t place : outputs_) {
    TORCH_CHECK(frame[place].isTensor(), "an output is no tensor");
    outputs.push_back(frame[place].toTensor());
  }
  return outputs;
}

std::vector<at::Tensor> Program::run(const std::vector<at::Tensor>& inputs) const { return execute(inputs, nullptr); }

std::vector<double> Program::profile(const std::vector<at::Tensor>& inputs) const {
  std::vector<double> seconds;
  execute(inputs, &seconds);
  return seconds;
}

}  // namespace enginebay

TORCH_LIBRARY_FRAGMENT(enginebay, m) {
  m.class_<enginebay::Program>("Program")
      .def(torch::init<const std::string&>())
      .def("bind", &enginebay::Program::bind)
      .def("run", &enginebay::Program::run)
      .def("profile", &enginebay::Program::profile)
      .def("calls", &enginebay::Program::calls)
      .def("inputs", &enginebay::Program::inputs);
}
