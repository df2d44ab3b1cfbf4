// A node of the record, read against its operator's schema: what does not fit is found here, not in a step.
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <limits>
#include <stdexcept>

#include "program.h"

namespace enginebay {
namespace {

using c10::TypeKind;

[[noreturn]] void unfit(const std::string& why) { throw std::invalid_argument(why); }

c10::IValue marked(const std::string& kind, const std::string& value) {
  static const std::map<std::string, c10::ScalarType> dtypes = {
      {"float32", at::kFloat},  {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},     {"int32", at::kInt},      {"int16", at::kShort},  {"int8", at::kChar},
      {"uint8", at::kByte},     {"bool", at::kBool},      {"float8_e4m3fn", at::kFloat8_e4m3fn}};
  static const std::map<std::string, at::MemoryFormat> formats = {{"contiguous_format", at::MemoryFormat::Contiguous},
                                                                  {"preserve_format", at::MemoryFormat::Preserve},
                                                                  {"channels_last", at::MemoryFormat::ChannelsLast}};
  if (kind == "dtype" && dtypes.count(value)) return int64_t(dtypes.at(value));
  if (kind == "memory_format" && formats.count(value)) return int64_t(formats.at(value));
  if (kind == "layout" && value == "strided") return int64_t(at::kStrided);
  if (kind == "float" && (value == "inf" || value == "-inf" || value == "nan")) return std::stod(value);
  if (kind == "device") return c10::Device(value);
  if (kind == "float" && value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (kind == "float" && (value == "inf" || value == "-inf"))
    return (value == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
  unfit("unknown " + kind + " '" + value + "'");
}

Argument fixed(c10::IValue value) {
  Argument argument;
  argument.value = std::move(value);
  return argument;
}

// A number where an operator takes a tensor: it does not decide the result's dtype, as in Python.
Argument number(const c10::Scalar& value) {
  at::Tensor wrapped = c10::scalar_to_tensor(value);
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  return fixed(wrapped);
}

Argument read(const Json& json, c10::TypePtr type, const std::map<std::string, int64_t>& places);

Argument read_list(const Json& json, const c10::TypePtr& type, const std::map<std::string, int64_t>& places) {
  Argument argument;
  argument.kind = Argument::list;
  argument.element = type->castRaw<c10::ListType>()->getElementType();
  for (const Json& item : json.items) argument.items.push_back(read(item, argument.element, places));
  return argument;
}

Argument read(const Json& json, c10::TypePtr type, const std::map<std::string, int64_t>& places) {
  if (const Json* name = json.find("ref")) {
    if (name->kind != Json::text || !places.count(name->string)) unfit("nothing before it is named '" + name->string + "'");
    Argument argument;
    argument.kind = Argument::place;
    argument.at = places.at(name->string);
    return argument;
  }
  if (type->kind() == TypeKind::OptionalType) {
    if (json.kind == Json::null) return fixed({});
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  const auto wanted = type->kind();
  const auto is = [&](TypeKind kind) { return wanted == kind; };
  switch (json.kind) {
    case Json::boolean:
      if (is(TypeKind::BoolType) || is(TypeKind::NumberType)) return fixed(json.truth);
      break;
    case Json::integer:
      if (is(TypeKind::FloatType)) return fixed(double(json.whole));
      if (is(TypeKind::IntType) || is(TypeKind::SymIntType) || is(TypeKind::NumberType)) return fixed(json.whole);
      if (is(TypeKind::BoolType)) return fixed(json.whole != 0);
      if (is(TypeKind::TensorType)) return number(json.whole);
      break;
    case Json::real:
      if (is(TypeKind::FloatType) || is(TypeKind::NumberType)) return fixed(json.number);
      if (is(TypeKind::TensorType)) return number(json.number);
      break;
    case Json::text:
      if (is(TypeKind::StringType)) return fixed(json.string);
      break;
    case Json::list:
      if (is(TypeKind::ListType)) return read_list(json, type, places);
      break;
    case Json::object:
      if (json.members.size() == 1 && json.members[0].second.kind == Json::text) {
        const c10::IValue value = marked(json.members[0].first, json.members[0].second.string);
        if (value.isDouble() ? is(TypeKind::FloatType) || is(TypeKind::NumberType)
                             : is(value.isDevice() ? TypeKind::DeviceObjType : TypeKind::IntType))
          return fixed(value);
      }
      break;
    case Json::null:
      break;
  }
  unfit("an argument is no " + type->annotation_str());
}

Call::Kind plain(const std::string& target) {
  static const std::map<std::string, Call::Kind> kinds = {
      {"getitem", Call::item}, {"int:add", Call::add},           {"int:sub", Call::sub},
      {"int:mul", Call::mul},  {"int:floordiv", Call::floordiv}, {"aten::sym_size.int", Call::size}};
  const auto found = kinds.find(target);
  return found == kinds.end() ? Call::operation : found->second;
}

void read_operation(Call& call, const Json& args, const Json& kwargs, const std::map<std::string, int64_t>& places) {
  const size_t scope = call.target.find("::"), dot = call.target.find('.', scope == std::string::npos ? 0 : scope);
  const std::string name = call.target.substr(0, dot), overload = dot == std::string::npos ? "" : call.target.substr(dot + 1);
  call.handle = c10::Dispatcher::singleton().findSchema({name, overload == "default" ? "" : overload});
  if (!call.handle) unfit("there is no operator " + call.target);
  const auto& schema = call.handle->schema().arguments();
  if (args.items.size() > schema.size()) unfit("it has more arguments than its operator");
  size_t used = 0;
  for (size_t i = 0; i < schema.size(); ++i) {
    const Json* given = i < args.items.size() ? &args.items[i] : kwargs.find(schema[i].name());
    used += i >= args.items.size() && given;
    if (given)
      call.arguments.push_back(read(*given, schema[i].type(), places));
    else if (schema[i].default_value())
      call.arguments.push_back(fixed(*schema[i].default_value()));
    else
      unfit("it has no argument " + schema[i].name());
  }
  if (used != kwargs.members.size()) unfit("it has an argument that its operator has not, or one twice");
}

}  // namespace

Call read_call(const Json& node, const std::map<std::string, int64_t>& places) {
  Call call;
  call.name = node.at("name", Json::text).string;
  call.target = node.at("op", Json::text).string;
  try {
    const Json& args = node.at("args", Json::list);
    static const Json none;
    const Json& kwargs = node.find("kwargs") ? node.at("kwargs", Json::object) : none;
    call.kind = plain(call.target);
    if (call.kind == Call::operation) {
      read_operation(call, args, kwargs, places);
      return call;
    }
    if (args.items.size() != 2 || !kwargs.members.empty()) unfit("it takes two arguments");
    const auto any = call.kind == Call::size || call.kind == Call::item;
    call.arguments.push_back(read(args.items[0], any ? c10::TypePtr(c10::TensorType::get()) : c10::IntType::get(), places));
    call.arguments.push_back(read(args.items[1], c10::IntType::get(), places));
    return call;
  } catch (const std::exception& error) {
    unfit("node " + call.name + " (" + call.target + "): " + error.what());
  }
}

void collect_places(const Argument& argument, std::vector<int64_t>& into) {
  if (argument.kind == Argument::place) into.push_back(argument.at);
  for (const Argument& item : argument.items) collect_places(item, into);
}

}  // namespace enginebay
