#include "attention_plan.h"
#include "attention_products.h"

namespace enginebay {
namespace {

constexpr int64_t kNear = 4;  // groups of 16 tokens from what is read to what is asked for
constexpr int64_t kMost = kSegment / kLanes;

// Where products find the keys and values of a stretch: by groups and by units of tokens.
struct Found {
  const bf16* lines[3 * kMost];  // groups of keys, of values and of the next keys, in the order of reading
  const bf16* units[kMost];
  Ahead keys_ahead, values_ahead;
};

// Where the groups of 16 tokens of a stretch lie, in packed keys or values of `size`; how many they are.
int64_t find_groups(const Attention<bf16>& a, const Pages<bf16>& pages, int64_t size, const Stretch& s,
                    const bf16** groups) {
  const int32_t* table = a.tables + s.request * a.columns;
  int64_t block = s.from / a.block_size, at = s.from % a.block_size, count = 0;
  for (; count * kLanes < s.seen; ++block, at = 0) {
    const bf16* const begin = pages.at + table[block] * pages.block + s.head * a.block_size * size;
    for (; at < a.block_size && count * kLanes < s.seen; at += kLanes) groups[count++] = begin + at * size;
  }
  return count;
}

// The packed values of a unit of tokens, of which the first `seen` are: zeros for the others.
void copy_unit(const bf16* values, int64_t unit, int64_t size, int64_t seen, bf16* to) {
  constexpr int64_t line = 2 * kLanes;  // a pair of tokens in a slice
  const int64_t piece = unit * kLanes, whole = (seen + 1) / 2 * line;
  for (int64_t i = 0; i < size; i += kLanes, to += piece, values += piece) {
    std::memcpy(to, values, whole * sizeof(bf16));
    std::memset(to + whole, 0, (piece - whole) * sizeof(bf16));
    if (seen % 2)
      for (int64_t lane = 0; lane < kLanes; ++lane) to[whole - line + 1 + 2 * lane] = bf16{};
  }
}

void find(const Plan<bf16, bf16>& plan, int64_t rows, const Stretch& now, const Stretch& next, bf16* copies,
          Found& found) {
  const auto& a = plan.a;
  const bf16** const lines = found.lines;
  const int64_t seen = now.seen, groups = find_groups(a, a.keys, a.key_size, now, lines);
  find_groups(a, a.values, a.value_size, now, lines + groups);
  if (rows < kRows) {  // reading takes longer than the products
    const int64_t all = 2 * groups + find_groups(a, a.keys, a.key_size, next, lines + 2 * groups);
    const int64_t slices = a.value_size / kLanes;
    found.values_ahead = {lines + kNear, all - kNear, 16};
    found.keys_ahead = {lines + groups + kNear, all - groups - kNear, (a.key_size / 2 + slices - 1) / slices};
  }
  const int64_t unit = together(a);
  for (int64_t u = 0; u * unit < seen; ++u) found.units[u] = lines[groups + u * (unit / kLanes)];
  if (seen % unit) {  // what lies behind the last token is not a number, perhaps
    copy_unit(found.units[seen / unit], unit, plan.wide, seen % unit, copies);
    found.units[seen / unit] = copies;
  }
}

}  // namespace

template <class T, class C>
void Plan<T, C>::read_packed(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch,
                             const Stretch& next) const {
  float* const scores = reinterpret_cast<float*>(scratch);
  T* const weights = reinterpret_cast<T*>(scores + kRows * kRowScores);
  T* const copies = weights + kRows * kRowScores;
  const int64_t from = now.from, seen = now.seen, count = head_rows(t), unit = together(a);
  const auto first_seen = [&](int64_t r) {
    return a.window ? std::max<int64_t>(t.position + r / group - a.window + 1 - from, 0) / kUnit * kUnit : 0;
  };
  Found found;
  find(*this, count, now, next, copies, found);
  const auto chunk = [&](int64_t r, int64_t most) {
    Chunk c{r, std::min(count - r, most), 0, 0, 0, 0};
    c.begin = first_seen(r);
    c.end = std::min(t.position + (r + c.rows - 1) / group + 1 - from, seen);
    if (c.begin >= c.end) return c;
    c.scored = (c.end - c.begin + kLanes - 1) / kLanes;
    c.steps = (c.end - c.begin + unit - 1) / unit;
    return c;
  };
  const auto keys = [&](const Chunk& c) -> KeyParts {
    return {found.lines + c.begin / kLanes, c.scored, deep / 32, found.values_ahead};
  };
  const auto values = [&](const Chunk& c) -> ValueParts {
    return {found.units + c.begin / unit, wide / kLanes, c.steps, unit / 2, found.keys_ahead};
  };
  const auto row = [&](const Chunk& c, int64_t i, float* scores, T* weights) {
    const int64_t high = t.position + (c.first + i) / group + 1 - from - c.begin;
    softmax<T>(scores + i * kRowScores, (c.scored + 1) / 2 * 2, a.window ? high - a.window : 0, high, a.scale, a.softcap,
            into.peak + c.first + i, into.total + (c.first + i) * 16, weights + i * kRowScores);
  };
  const auto part = [&](const Chunk& c) -> Part {
    return {into.peak + c.first, into.total + c.first * 16, into.values + c.first * wide};
  };
  if (count > kTile && kind() == Kind::amx) {
    // While the softmax of some rows is computed, tiles multiply their neighbours: the last weights, the next keys.
    amx_pairs(unit / 2);
    AmxProduct<ValueParts> last;
    AmxProduct<KeyParts> next;
    int which = 0;
    Chunk now = chunk(0, kTile);
    const auto half = [&](auto* memory) { return memory + which * kTile * kRowScores; };
    if (now.scored) AmxProduct<KeyParts>(queries, deep, now.rows, keys(now), scores, kRowScores).rest();
    for (;; which ^= 1) {
      const int64_t following = now.first + now.rows;
      const Chunk then = following < count ? chunk(following, kTile) : Chunk{};
      if (then.scored)
        next = {queries + then.first * deep, deep, then.rows, keys(then), scores + (which ^ 1) * kTile * kRowScores,
                kRowScores};
      if (!now.scored) nothing(now.rows, part(now));
      for (int64_t i = 0; now.scored && i < now.rows; ++i) {
        if (!last.some()) next.some();
        row(now, i, half(scores), half(weights));
      }
      last.rest();
      next.rest();
      last = {};
      if (now.scored) last = {half(weights), kRowScores, now.rows, values(now), part(now).values, wide};
      if (!then.rows) break;
      now = then;
    }
    last.rest();
    return;
  }
  for (int64_t r = 0; r < count; r += kRows) {
    const Chunk c = chunk(r, kRows);
    if (!c.scored) {
      nothing(c.rows, part(c));
      continue;
    }
    packed_scores(queries + r * deep, c.rows, keys(c), scores, kRowScores);
    for (int64_t i = 0; i < c.rows; ++i) row(c, i, scores, weights);
    packed_values(weights, kRowScores, c.rows, values(c), part(c).values);
  }
}

template void Plan<bf16, bf16>::read_packed(const Tile&, const Stretch&, const bf16*, Part, char*,
                                            const Stretch&) const;

}  // namespace enginebay
