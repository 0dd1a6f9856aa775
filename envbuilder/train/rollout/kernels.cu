// One decode step of a Qwen2- or Llama-shaped decoder in float32, for batches of NB sequences.
//
// Compiled at run time by NVRTC for the card at hand, so any capability from 5.0 on works. Shapes are macros:
//   NB   sequences in the batch          H    hidden size, a multiple of 128
//   I    intermediate size, of 128       NH   query heads
//   NKV  key/value heads                 HD   head dimension, 64 or 128
//   S    length of the KV cache
// A decode step reads every weight once; what these kernels do is keep that read the only cost. A warp takes one or two
// rows of a weight, all lanes load 16 bytes, and the NB activations wait in shared memory (or L1 for the wide one).

#define WARPS 8
#define THREADS (WARPS * 32)
#define PER (H / 128)  // float4 of one row a lane holds

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float dot4(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Weights are read once a token and never again before all others were: do not let them push out anything in L1.
__device__ __forceinline__ float4 stream4(const float4* p) {
#if __CUDA_ARCH__ >= 700
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
#else
  return __ldg(p);  // the hint is for 7.0 and later
#endif
}

// xs[b][:] = x[b][:] * rsqrt(mean(x[b]^2) + eps) * weight, by the whole block.
__device__ void rms_norm(const float* __restrict__ x, const float* __restrict__ weight, float eps, float* xs) {
  __shared__ float part[NB][WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float sum[NB];
#pragma unroll
  for (int b = 0; b < NB; b++) {
    sum[b] = 0.f;
    for (int i = threadIdx.x; i < H; i += THREADS) {
      float v = x[b * H + i];
      xs[b * H + i] = v;
      sum[b] += v * v;
    }
    sum[b] = warp_sum(sum[b]);
    if (lane == 0) part[b][warp] = sum[b];
  }
  __syncthreads();
#pragma unroll
  for (int b = 0; b < NB; b++) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += part[b][w];
    const float scale = rsqrtf(total / H + eps);
    for (int i = threadIdx.x; i < H; i += THREADS) xs[b * H + i] = weight[i] * (xs[b * H + i] * scale);
  }
  __syncthreads();
}

__device__ __forceinline__ void load_row(const float* __restrict__ w, int lane, float4 (&row)[PER]) {
  const float4* w4 = reinterpret_cast<const float4*>(w);
#pragma unroll
  for (int i = 0; i < PER; i++) row[i] = stream4(w4 + i * 32 + lane);
}

// acc[r][b] = rows[r] . xs[b]. The activations are read once for all R rows: at NB = 8 they cost more than the weights.
template <int R>
__device__ __forceinline__ void rows_dot(const float4 (&rows)[R][PER], const float* xs, int lane, float (&acc)[R][NB]) {
#pragma unroll
  for (int b = 0; b < NB; b++) {
    const float4* x4 = reinterpret_cast<const float4*>(xs + b * H);
    float a[R];
#pragma unroll
    for (int r = 0; r < R; r++) a[r] = 0.f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
      const float4 x = x4[i * 32 + lane];
#pragma unroll
      for (int r = 0; r < R; r++) a[r] += dot4(rows[r][i], x);
    }
#pragma unroll
    for (int r = 0; r < R; r++) acc[r][b] = warp_sum(a[r]);
  }
}

// q, k, v of the normalised hidden state. out: [NB][(NH + 2 NKV) HD]. Biases may be null.
extern "C" __global__ void __launch_bounds__(THREADS) norm_qkv(
    const float* x, const float* norm, float eps, const float* wq, const float* wk, const float* wv, const float* bq,
    const float* bk, const float* bv, float* out) {
  __shared__ __align__(16) float xs[NB * H];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int rows = (NH + 2 * NKV) * HD, row = blockIdx.x * WARPS + warp;
  const float* w = wq;
  const float* bias = bq;
  int local = row;
  if (row >= (NH + NKV) * HD) {
    w = wv, bias = bv, local = row - (NH + NKV) * HD;
  } else if (row >= NH * HD) {
    w = wk, bias = bk, local = row - NH * HD;
  }
  float4 weights[1][PER];
  if (row < rows) load_row(w + (size_t)local * H, lane, weights[0]);  // in flight while the norm is computed
  rms_norm(x, norm, eps, xs);
  if (row >= rows) return;
  float acc[1][NB];
  rows_dot(weights, xs, lane, acc);
  if (lane == 0) {
    const float b0 = bias ? bias[local] : 0.f;
#pragma unroll
    for (int b = 0; b < NB; b++) out[b * rows + row] = acc[0][b] + b0;
  }
}

// Rotary embedding, write of the new key and value into the cache, and attention over keys pad[b]..pos.
// qkv: [NB][(NH + 2 NKV) HD]; cache_k, cache_v: [NB][NKV][S][HD]; out: [NB][NH HD]. One block a query head.
extern "C" __global__ void __launch_bounds__(THREADS) attend(
    const float* qkv, const float* inv_freq, float rope_scale, const int* pos_ptr, const int* pad, float* cache_k,
    float* cache_v, float* out) {
  constexpr int LANES = HD / 4;            // lanes that hold one key
  constexpr int GROUPS = THREADS / LANES;  // keys looked at at once
  constexpr int AHEAD = 4;                 // loads in flight a lane: 14 blocks alone cannot hide the latency
  __shared__ float4 q4[LANES], k4[LANES], v4[LANES];
  __shared__ float scores[S];
  __shared__ float4 sums[GROUPS][LANES];
  __shared__ float red[WARPS];
  float *q = reinterpret_cast<float*>(q4), *k = reinterpret_cast<float*>(k4), *v = reinterpret_cast<float*>(v4);
  const int head = blockIdx.x, b = blockIdx.y, kv = head / (NH / NKV);
  const int pos = *pos_ptr, first = pad[b];
  const float* base = qkv + (size_t)b * (NH + 2 * NKV) * HD;
  float* keys = cache_k + ((size_t)b * NKV + kv) * S * HD;
  float* values = cache_v + ((size_t)b * NKV + kv) * S * HD;
  if (threadIdx.x < HD) {
    const int d = threadIdx.x, half = HD / 2, f = d < half ? d : d - half;
    const float angle = (float)(pos - first) * inv_freq[f];
    const float c = cosf(angle) * rope_scale, s = sinf(angle) * rope_scale;
    const float* qh = base + head * HD;
    const float* kh = base + (NH + kv) * HD;
    q[d] = qh[d] * c + (d < half ? -qh[d + half] : qh[d - half]) * s;
    k[d] = kh[d] * c + (d < half ? -kh[d + half] : kh[d - half]) * s;
    v[d] = base[(NH + NKV + kv) * HD + d];
    if (head % (NH / NKV) == 0) {
      keys[(size_t)pos * HD + d] = k[d];
      values[(size_t)pos * HD + d] = v[d];
    }
  }
  __syncthreads();
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const float scale = rsqrtf((float)HD);
  const float4 mine = q4[lane];
  float top = -3.4e38f;
  for (int start = first; start <= pos; start += GROUPS * AHEAD) {  // every lane takes part: the shuffles need them all
    float4 key[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = start + u * GROUPS + group;
      key[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (j < pos) key[u] = reinterpret_cast<const float4*>(keys + (size_t)j * HD)[lane];
      if (j == pos) key[u] = k4[lane];
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = start + u * GROUPS + group;
      float s = dot4(mine, key[u]);
#pragma unroll
      for (int o = LANES / 2; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
      s *= scale;
      if (j <= pos) {
        if (lane == 0) scores[j] = s;
        top = fmaxf(top, s);
      }
    }
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS; w++) top = fmaxf(top, red[w]);
  float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
  float weight = 0.f;
  for (int start = first; start <= pos; start += GROUPS * AHEAD) {
    float4 val[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = start + u * GROUPS + group;
      val[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (j < pos) val[u] = reinterpret_cast<const float4*>(values + (size_t)j * HD)[lane];
      if (j == pos) val[u] = v4[lane];
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = start + u * GROUPS + group;
      const float p = j <= pos ? expf(scores[j] - top) : 0.f;
      acc.x += p * val[u].x, acc.y += p * val[u].y, acc.z += p * val[u].z, acc.w += p * val[u].w;
      weight += p;
    }
  }
  sums[group][lane] = acc;
  __syncthreads();
  __shared__ float totals[GROUPS];
  if (lane == 0) totals[group] = weight;
  __syncthreads();
  if (threadIdx.x < LANES) {
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
    float total = 0.f;
    for (int g = 0; g < GROUPS; g++) {
      const float4 part = sums[g][threadIdx.x];
      o.x += part.x, o.y += part.y, o.z += part.z, o.w += part.w;
      total += totals[g];
    }
    const float r = 1.f / total;
    float4* target = reinterpret_cast<float4*>(out + ((size_t)b * NH + head) * HD);
    target[threadIdx.x] = make_float4(o.x * r, o.y * r, o.z * r, o.w * r);
  }
}

// x += in W^T, with in: [NB][N] read through L1. Four warps share a pair of rows.
template <int N>
__device__ __forceinline__ void project(const float* __restrict__ in, const float* __restrict__ w, float* x) {
  constexpr int SPLIT = 4, ROWS = 2;
  __shared__ float part[WARPS][ROWS][NB];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row = (blockIdx.x * (WARPS / SPLIT) + warp / SPLIT) * ROWS;
  float acc[ROWS][NB];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int b = 0; b < NB; b++) acc[r][b] = 0.f;
  const float4* w4 = reinterpret_cast<const float4*>(w + (size_t)row * N);
  const float4* in4 = reinterpret_cast<const float4*>(in);
#pragma unroll 4
  for (int i = (warp % SPLIT) * 32 + lane; i < N / 4; i += SPLIT * 32) {
    float4 a[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) a[r] = stream4(w4 + r * (N / 4) + i);
#pragma unroll
    for (int b = 0; b < NB; b++) {
      const float4 v = in4[b * (N / 4) + i];
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[r][b] += dot4(a[r], v);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int b = 0; b < NB; b++) {
      const float s = warp_sum(acc[r][b]);
      if (lane == 0) part[warp][r][b] = s;
    }
  __syncthreads();
  if (threadIdx.x < (WARPS / SPLIT) * ROWS * NB) {
    const int g = threadIdx.x / (ROWS * NB), r = threadIdx.x / NB % ROWS, b = threadIdx.x % NB;
    float s = 0.f;
#pragma unroll
    for (int p = 0; p < SPLIT; p++) s += part[g * SPLIT + p][r][b];
    x[b * H + (blockIdx.x * (WARPS / SPLIT) + g) * ROWS + r] += s;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) project_attention(const float* in, const float* w, float* x) {
  project<NH * HD>(in, w, x);
}

extern "C" __global__ void __launch_bounds__(THREADS) project_mlp(const float* in, const float* w, float* x) {
  project<I>(in, w, x);
}

// silu(gate) * up of the normalised hidden state. out: [NB][I].
extern "C" __global__ void __launch_bounds__(THREADS) norm_gate_up(
    const float* x, const float* norm, float eps, const float* wg, const float* wu, float* out) {
  __shared__ __align__(16) float xs[NB * H];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x * WARPS + warp;
  float4 weights[2][PER];
  if (row < I) {
    load_row(wg + (size_t)row * H, lane, weights[0]);
    load_row(wu + (size_t)row * H, lane, weights[1]);
  }
  rms_norm(x, norm, eps, xs);
  if (row >= I) return;
  float acc[2][NB];
  rows_dot(weights, xs, lane, acc);
  if (lane == 0)
#pragma unroll
    for (int b = 0; b < NB; b++) out[b * I + row] = acc[0][b] / (1.f + expf(-acc[0][b])) * acc[1][b];
}

// Logits of the normalised hidden state. out: [NB][vocabulary]. Blocks stride over the rows.
extern "C" __global__ void __launch_bounds__(THREADS) norm_logits(
    const float* x, const float* norm, float eps, const float* w, int vocabulary, float* out) {
  constexpr int ROWS = NB > 2 ? 4 : 1;
  __shared__ __align__(16) float xs[NB * H];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  rms_norm(x, norm, eps, xs);
  for (int row = (blockIdx.x * WARPS + warp) * ROWS; row < vocabulary; row += gridDim.x * WARPS * ROWS) {
    float4 weights[ROWS][PER];
#pragma unroll
    for (int r = 0; r < ROWS; r++) load_row(w + (size_t)min(row + r, vocabulary - 1) * H, lane, weights[r]);
    float acc[ROWS][NB];
    rows_dot(weights, xs, lane, acc);
    if (lane == 0)
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int b = 0; b < NB; b++)
          if (row + r < vocabulary) out[(size_t)b * vocabulary + row + r] = acc[r][b];
  }
}
