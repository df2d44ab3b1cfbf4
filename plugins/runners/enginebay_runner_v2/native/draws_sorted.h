// A draw among few tokens, which are sorted: with top-k, and with min-p and top-p both.
#pragma once
#include "draws.h"

namespace enginebay {

template <class T>
int64_t drawn_sorted(const T* scores, int64_t width, const Chance& chance);

}  // namespace enginebay
