// llm.c's CPU trainer as the rival of `baleen bench train`: GPT-2 with 6 layers, width 384, 6 heads, V = 50,304, random weights and tokens.
//
//   cc -O3 -march=native -ffast-math -fno-finite-math-only -fopenmp -DOMP -DLLMC='"LLM.C/train_gpt2.c"' llmc_step.c -o llmc_step -lm
//   echo STEPS | ./llmc_step CHECKPOINT [B T]         writes CHECKPOINT (120 MB) first; it may be removed afterwards
//
// Speaks as cpu_peer.py does: `ready`, then tokens/s of the median step for each line `steps`. llm.c is built outside this repository.
#define TESTING
#include LLMC

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// A checkpoint of version 3 with uniform random weights: their values do not matter to the time.
static void write_checkpoint(const char* path, int longest) {
  const int layers = 6, width = 384, heads = 6, vocabulary = 50304;
  int header[256] = {20240326, 3, longest, vocabulary, layers, heads, width, vocabulary};
  const size_t w = (size_t)width;
  const size_t count = ((size_t)vocabulary + (size_t)longest) * w + (size_t)layers * (12 * w * w + 13 * w) + 2 * w;
  FILE* file = fopen(path, "wb");
  if (file == NULL) exit(1);
  fwrite(header, sizeof header, 1, file);
  unsigned state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = ((float)(state >> 8) / 16777216.0f - 0.5f) * 0.07f;
    fwrite(&value, sizeof value, 1, file);
  }
  fclose(file);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int B = argc > 2 ? atoi(argv[2]) : 4, T = argc > 3 ? atoi(argv[3]) : 256;
  write_checkpoint(argv[1], T);
  // Its own messages go to standard error: standard output carries the results.
  const int results = dup(1);
  dup2(2, 1);
  GPT2 model;
  gpt2_build_from_checkpoint(&model, argv[1]);
  FILE* out = fdopen(results, "w");
  int* tokens = malloc(sizeof(int) * (size_t)(2 * B * T));
  for (int i = 0; i < 2 * B * T; ++i) tokens[i] = (int)((unsigned)i * 2654435761u % 50257u);
  fprintf(out, "ready\n");
  fflush(out);
  int steps = 0, done = 0;
  while (scanf("%d", &steps) == 1 && steps > 0) {
    double* seconds = malloc(sizeof(double) * (size_t)steps);
    for (int i = 0; i < steps; ++i) {
      const double begin = now();
      gpt2_forward(&model, tokens, tokens + B * T, (size_t)B, (size_t)T);
      gpt2_zero_grad(&model);
      gpt2_backward(&model);
      gpt2_update(&model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, ++done);
      seconds[i] = now() - begin;
    }
    qsort(seconds, (size_t)steps, sizeof(double), ascending);
    fprintf(out, "%f\n", B * T / seconds[steps / 2]);
    fflush(out);
    free(seconds);
  }
  return 0;
}
