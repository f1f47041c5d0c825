// Attention by its definition, in float64 with the whole Tq × Tk matrix of each head, forward and backward.
#pragma once

#include <optional>
#include <string>

#include "ops/attention.h"
#include "ops/support.h"

namespace baleen::ops::testing {

struct AttentionCase {
  const char* name;
  std::int64_t batch, query_length, key_length, heads, kv_heads, head_dim;
  std::int64_t query_offset = 0, key_offset = 0;
  std::vector<std::int32_t> document_begin = {};  // [Tq], the same for each sequence; empty: none
  std::int64_t room = 0;                          // tokens between the sequences of k and v beyond key_length

  AttentionShape shape() const {
    AttentionShape result;
    result.batch = batch, result.query_length = query_length, result.key_length = key_length;
    result.heads = heads, result.kv_heads = kv_heads, result.head_dim = head_dim;
    result.query_stride = heads * head_dim + 3, result.key_stride = 2 * kv_heads * head_dim + 5, result.out_stride = heads * head_dim + 4;
    if (room != 0) result.key_batch_stride = (key_length + room) * result.key_stride;
    result.query_offset = query_offset, result.key_offset = key_offset;
    result.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    return result;
  }
};

// Dense arrays: q, out and their gradients [B, Tq, H, D]; k, v and theirs [B, Tk, Hkv, D]; lse [B, H, Tq].
struct AttentionValues {
  std::vector<double> q, k, v, out, lse, d_out, d_q, d_k, d_v;
};

class AttentionReference {
 public:
  explicit AttentionReference(const AttentionCase& c) : c_(c) {}

  void forward(AttentionValues& a) const {
    a.out.assign(a.q.size(), 0);
    a.lse.assign(static_cast<std::size_t>(c_.batch * c_.heads * c_.query_length), -std::numeric_limits<double>::infinity());
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const std::vector<double> p = probabilities(a, b, h, i, &a.lse[static_cast<std::size_t>((b * c_.heads + h) * c_.query_length + i)]);
      for (std::int64_t j = 0; j < c_.key_length; ++j)
        for (std::int64_t x = 0; x < c_.head_dim; ++x) a.out[q_at(b, i, h) + at(x)] += p[at(j)] * a.v[k_at(b, j, h) + at(x)];
    });
  }

  void backward(AttentionValues& a) const {
    a.d_q.assign(a.q.size(), 0), a.d_k.assign(a.k.size(), 0), a.d_v.assign(a.v.size(), 0);
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const std::vector<double> p = probabilities(a, b, h, i, nullptr);
      std::vector<double> d_p(p.size());
      double mean = 0;
      for (std::int64_t j = 0; j < c_.key_length; ++j) {
        for (std::int64_t x = 0; x < c_.head_dim; ++x) {
          d_p[at(j)] += a.d_out[q_at(b, i, h) + at(x)] * a.v[k_at(b, j, h) + at(x)];
          a.d_v[k_at(b, j, h) + at(x)] += p[at(j)] * a.d_out[q_at(b, i, h) + at(x)];
        }
        mean += p[at(j)] * d_p[at(j)];
      }
      for (std::int64_t j = 0; j < c_.key_length; ++j) {
        const double d_score = p[at(j)] * (d_p[at(j)] - mean) * static_cast<double>(c_.shape().scale);
        for (std::int64_t x = 0; x < c_.head_dim; ++x) {
          a.d_q[q_at(b, i, h) + at(x)] += d_score * a.k[k_at(b, j, h) + at(x)];
          a.d_k[k_at(b, j, h) + at(x)] += d_score * a.q[q_at(b, i, h) + at(x)];
        }
      }
    });
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::size_t q_at(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return at(((b * c_.query_length + i) * c_.heads + h) * c_.head_dim);
  }
  std::size_t k_at(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return at(((b * c_.key_length + j) * c_.kv_heads + h / (c_.heads / c_.kv_heads)) * c_.head_dim);
  }
  template <class Body>
  void for_each_query(const Body& body) const {
    for (std::int64_t b = 0; b < c_.batch; ++b)
      for (std::int64_t h = 0; h < c_.heads; ++h)
        for (std::int64_t i = 0; i < c_.query_length; ++i) body(b, h, i);
  }
  // [Tk], zero where the query sees nothing.
  std::vector<double> probabilities(const AttentionValues& a, std::int64_t b, std::int64_t h, std::int64_t i, double* lse) const {
    std::vector<double> p(at(c_.key_length));
    double sum = 0;
    for (std::int64_t j = 0; j < c_.key_length; ++j) {
      const std::int64_t key = c_.key_offset + j;
      if (key > c_.query_offset + i || (!c_.document_begin.empty() && key < c_.document_begin[at(i)])) continue;
      double score = 0;
      for (std::int64_t x = 0; x < c_.head_dim; ++x) score += a.q[q_at(b, i, h) + at(x)] * a.k[k_at(b, j, h) + at(x)];
      sum += p[at(j)] = std::exp(score * static_cast<double>(c_.shape().scale));
    }
    if (sum > 0)
      for (double& value : p) value /= sum;
    if (lse != nullptr) *lse = std::log(sum);
    return p;
  }

  AttentionCase c_;
};

}  // namespace baleen::ops::testing
