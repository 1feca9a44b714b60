// Loads for tiers: cc -O2 -static -pthread -o churn churn.c -lm
//
//   churn files TARGET KEY=VALUE...  temporary files on a block device or in a directory
//   churn seq DEVICE KEY=VALUE...    one stream of writes or reads
//   churn poisson DEVICE KEY=VALUE.. random reads at random times
//
// Each prints one line of JSON. In virtual time nothing costs processor time: `cost` is what each request costs its client
// besides (µs), and `mbs` how fast memory is copied (MB/s, 0: at once); both pass asleep, so requests of other threads go on.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
typedef uint64_t u64;
typedef uint32_t u32;
#define MIB (1ull << 20)

static u64 now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void until(u64 t) { struct timespec s = { t / 1000000000ull, t % 1000000000ull }; while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &s, NULL) == EINTR) ; }
static u64 rnd(u64 *s) { u64 z = (*s += 0x9e3779b97f4a7c15ull); z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull; return z ^ (z >> 31); }
static double unit(u64 *s) { return (rnd(s) >> 11) / 9007199254740992.0; }
static void die(const char *what) { fprintf(stderr, "churn: %s: %s\n", what, strerror(errno)); exit(1); }

// ---- arguments ----
static char **words;
static double num(const char *key, double otherwise) {
  size_t n = strlen(key);
  for (char **w = words; *w; w++) if (!strncmp(*w, key, n) && (*w)[n] == '=') return atof(*w + n + 1);
  return otherwise;
}
static const char *text(const char *key) {
  size_t n = strlen(key);
  for (char **w = words; *w; w++) if (!strncmp(*w, key, n) && (*w)[n] == '=') return *w + n + 1;
  return NULL;
}

// ---- samples ----
struct samples { u32 *us; size_t n, cap; };
static void put(struct samples *s, u64 ns) {
  if (s->n == s->cap) { s->cap = s->cap ? s->cap * 2 : 65536; s->us = realloc(s->us, s->cap * sizeof(u32)); }
  u64 us = ns / 1000; s->us[s->n++] = us > UINT32_MAX ? UINT32_MAX : us;
}
static int ascending(const void *a, const void *b) { u32 x = *(u32 *)a, y = *(u32 *)b; return x < y ? -1 : x > y; }
static void print_samples(const char *name, struct samples *all, int count) {
  struct samples s = { 0 }; double sum = 0;
  for (int i = 0; i < count; i++) for (size_t k = 0; k < all[i].n; k++) put(&s, all[i].us[k] * 1000ull);
  qsort(s.us, s.n, sizeof(u32), ascending);
  for (size_t i = 0; i < s.n; i++) sum += s.us[i];
  if (s.n) printf("\"%s\": {\"n\": %zu, \"mean_us\": %.1f, \"p50_us\": %u, \"p99_us\": %u, \"p999_us\": %u, \"max_us\": %u}, ", name, s.n, sum / s.n, s.us[s.n / 2], s.us[(size_t)(s.n * 0.99)], s.us[(size_t)(s.n * 0.999)], s.us[s.n - 1]);
  free(s.us);
}

static double cost_us, memory_mbs;
static u64 memory_free; static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static void pay(u64 bytes) {
  u64 t = now() + cost_us * 1000;
  if (memory_mbs > 0) { // one copy after the other
    pthread_mutex_lock(&memory_lock);
    t = memory_free = (memory_free > t ? memory_free : t) + (u64)(bytes * 1000 / memory_mbs);
    pthread_mutex_unlock(&memory_lock);
  } else if (cost_us <= 0) return;
  until(t);
}
static void *buffer(u64 bytes, u64 seed) {
  void *b; if (posix_memalign(&b, 4096, bytes)) die("memory");
  for (u64 i = 0; i < bytes / 8; i++) ((u64 *)b)[i] = rnd(&seed);
  return b;
}

// ---- files ----
// The oldest come first. Of the reads `hot` % go to the newest `newest` files, the others to those that are older; of all requests
// `fresh` % write on in a file that grows behind. When it is whole it is the newest, and the oldest of the newest (or, with
// fifo=1, the oldest of all) is deleted, and the next begins. On a device a file is a list of mebibytes, each the next free one
// behind the last that was taken, as a file system without groups would have it; what is deleted is discarded.
struct file { int fd, users, gone; u64 number; u32 *units; u64 whole; };
static const char *target; static int is_dir, device, can_discard, direct;
static u64 bs, file_bytes; static int olds, newest, fresh, hot, is_fifo;
static struct file **files; static int count; // those that are whole, and the one that grows behind them
static struct file *growing; static u64 grown_next, numbers;
static unsigned char *taken; static u32 units, cursor, live_units;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int phase; static u64 seed, done_ops, want_ops, started, limit_ns; static u64 deleted, errors;
struct worker { pthread_t thread; u64 rng; struct samples reads, writes, deletes; u64 ops; u32 *seconds; };
#define SECONDS 4096

static u32 take_unit(void) {
  for (u32 i = 0; i < units; i++) { u32 u = cursor; cursor = (cursor + 1) % units; if (!taken[u]) { taken[u] = 1; live_units++; return u; } }
  fprintf(stderr, "churn: the device is full\n"); exit(1);
}
static struct file *begin_file(void) {
  struct file *f = calloc(1, sizeof *f); f->number = numbers++; f->users = 1;
  if (is_dir) {
    char path[512]; snprintf(path, sizeof path, "%s/t%llu", target, (unsigned long long)f->number);
    f->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0600); if (f->fd < 0) die(path);
  } else {
    f->fd = device; f->units = malloc(file_bytes / MIB * sizeof(u32));
    for (u64 i = 0; i < file_bytes / MIB; i++) f->units[i] = take_unit();
  }
  return f;
}
// A device may be two, one behind the other: A+B.
static int behind = -1; static u64 first_bytes;
static int open_target(int how) {
  char one[512]; snprintf(one, sizeof one, "%s", target); char *plus = strchr(one, '+');
  if (plus) { *plus = 0; behind = open(plus + 1, how); if (behind < 0) die(plus + 1); }
  int fd = open(one, how); if (fd < 0 || (plus && ioctl(fd, BLKGETSIZE64, &first_bytes))) die(one);
  return fd;
}
static u64 target_bytes(void) { u64 a = 0, b = 0; if (ioctl(device, BLKGETSIZE64, &a) || (behind >= 0 && ioctl(behind, BLKGETSIZE64, &b))) die(target); return a + b; }
static ssize_t transfer(int fd, int writes, void *buf, u64 bytes, u64 o) {
  if (behind >= 0 && o >= first_bytes) { fd = behind; o -= first_bytes; }
  return writes ? pwrite(fd, buf, bytes, o) : pread(fd, buf, bytes, o);
}
static u64 at(struct file *f, u64 offset) { return is_dir ? offset : (u64)f->units[offset / MIB] * MIB + offset % MIB; }
// With the lock held: nobody uses it, and it is gone.
static void drop_user(struct file *f) {
  if (--f->users || !f->gone) return;
  if (is_dir) close(f->fd);
  free(f->units); free(f);
}
static void delete_file(struct file *f) {
  if (is_dir) { char path[512]; snprintf(path, sizeof path, "%s/t%llu", target, (unsigned long long)f->number); if (unlink(path)) die(path); }
  else for (u64 i = 0, k; i < file_bytes / MIB; i = k) {
    for (k = i + 1; k < file_bytes / MIB && f->units[k] == f->units[k - 1] + 1; k++) ;
    u64 range[2] = { f->units[i] * MIB, (k - i) * MIB };
    if (can_discard && behind < 0 && ioctl(device, BLKDISCARD, range)) can_discard = 0;
  }
  pthread_mutex_lock(&lock);
  if (!is_dir) for (u64 i = 0; i < file_bytes / MIB; i++) { taken[f->units[i]] = 0; live_units--; }
  f->gone = 1; deleted++; drop_user(f);
  pthread_mutex_unlock(&lock);
}
static void *work(void *arg) {
  struct worker *w = arg; void *buf = buffer(bs, w->rng);
  for (;;) {
    pthread_mutex_lock(&lock);
    if (done_ops >= want_ops || now() - started > limit_ns) { pthread_mutex_unlock(&lock); break; }
    done_ops++;
    int writes = rnd(&w->rng) % 100 < (u64)fresh; struct file *f; u64 offset;
    if (writes) {
      if (grown_next == file_bytes) { pthread_mutex_unlock(&lock); usleep(20); pthread_mutex_lock(&lock); done_ops--; pthread_mutex_unlock(&lock); continue; }
      f = growing; offset = grown_next; grown_next += bs;
    } else {
      int first = count - newest; u64 r = rnd(&w->rng);
      f = rnd(&w->rng) % 100 < (u64)hot || first <= 0 ? files[first + r % newest] : files[r % first];
      offset = rnd(&w->rng) % (file_bytes / bs) * bs;
    }
    f->users++;
    pthread_mutex_unlock(&lock);
    u64 t0 = now(); *(u64 *)buf = t0;
    ssize_t n = transfer(f->fd, writes, buf, bs, at(f, offset));
    pay(bs);
    u64 t1 = now();
    put(writes ? &w->writes : &w->reads, t1 - t0); w->ops++;
    u64 second = (t1 - started) / 1000000000ull; if (second < SECONDS) w->seconds[second]++;
    struct file *leaving = NULL;
    pthread_mutex_lock(&lock);
    if (n != (ssize_t)bs) errors++;
    if (writes) f->whole += bs;
    drop_user(f);
    if (writes && f->whole == file_bytes) {
      int victim = is_fifo ? 0 : count - newest; leaving = files[victim];
      memmove(files + victim, files + victim + 1, (count - victim - 1) * sizeof *files);
      files[count - 1] = f;
    }
    pthread_mutex_unlock(&lock);
    if (leaving) { // its space is free before the next begins
      u64 d0 = now(); delete_file(leaving); put(&w->deletes, now() - d0);
      pthread_mutex_lock(&lock); growing = begin_file(); grown_next = 0; pthread_mutex_unlock(&lock);
    }
  }
  free(buf); return NULL;
}
static void run_phase(const char *name, int depth, double ops) {
  struct worker *w = calloc(depth, sizeof *w);
  done_ops = 0; want_ops = ops; started = now(); deleted = 0;
  for (int i = 0; i < depth; i++) { w[i].rng = seed * 1000003 + phase * 7919 + i; w[i].seconds = calloc(SECONDS, sizeof(u32)); pthread_create(&w[i].thread, NULL, work, &w[i]); }
  u64 all = 0; for (int i = 0; i < depth; i++) { pthread_join(w[i].thread, NULL); all += w[i].ops; }
  double s = (now() - started) / 1e9; int last = s;
  u64 worst = UINT64_MAX; struct samples *r = calloc(depth, sizeof *r), *x = calloc(depth, sizeof *x), *d = calloc(depth, sizeof *d);
  for (int k = 0; k < last && k < SECONDS; k++) { u64 sum = 0; for (int i = 0; i < depth; i++) sum += w[i].seconds[k]; if (sum < worst) worst = sum; }
  for (int i = 0; i < depth; i++) { r[i] = w[i].reads; x[i] = w[i].writes; d[i] = w[i].deletes; }
  printf("\"%s\": {\"s\": %.4f, \"ops\": %llu, \"mbs\": %.1f, \"files\": %llu, ", name, s, (unsigned long long)all, all * bs / 1e6 / s, (unsigned long long)deleted);
  print_samples("read", r, depth); print_samples("write", x, depth); print_samples("delete", d, depth);
  printf("\"worst_second_mbs\": %.1f}, ", worst == UINT64_MAX ? -1.0 : worst * bs / 1e6);
  phase++;
}

// A neighbour: memory of its own of which it uses some pages every few milliseconds, and one block of its own part of the SSD.
struct shared { volatile int phase; struct { volatile u64 n; u32 us[400000]; } of[8]; };
static struct shared *shared;
static void neighbour(const char *path) {
  int fd = path[0] == '/' ? open(path, O_RDONLY | O_DIRECT) : -1; u64 mib = num("nb_mib", 48), rng = seed + 99, size = 0;
  if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size)) die("neighbour's device");
  char *memory = mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); void *buf = buffer(4096, 1);
  for (u64 i = 0; i < mib * 256; i++) memory[i * 4096] = rnd(&rng);
  for (;;) {
    until(now() + (u64)(num("nb_gap_ms", 5) * 1e6));
    int p = shared->phase; if (p < 0) _exit(0);
    u64 t0 = now();
    for (int i = 0; i < 16; i++) memory[rnd(&rng) % (mib * 256) * 4096 + 8]++;
    if (pread(fd, buf, 4096, rnd(&rng) % (size / 4096) * 4096) != 4096) die("neighbour's read");
    u64 us = (now() - t0) / 1000, n = shared->of[p].n;
    if (n < 400000) { shared->of[p].us[n] = us; shared->of[p].n = n + 1; }
  }
}
static int files_main(void) {
  bs = num("bs", 16384); file_bytes = num("file", 32) * MIB; olds = num("old", 38); newest = num("newest", 10);
  fresh = num("fresh", 20); hot = num("hot", 70); is_fifo = num("fifo", 0); direct = num("direct", 1); seed = num("seed", 1);
  int depth = num("depth", 16); limit_ns = num("secs", 600) * 1e9;
  const char *path = text("neighbour"); pid_t child = 0;
  if (path) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || mlock(shared, sizeof *shared)) die("shared memory");
    child = fork(); if (!child) neighbour(path);
    until(now() + 200000000ull);
  }
  struct stat st; is_dir = !stat(target, &st) && S_ISDIR(st.st_mode);
  if (!is_dir) {
    device = open_target(O_RDWR | O_DIRECT); u64 size = num("size", 0) * MIB, all = target_bytes();
    if (!size || size > all) size = all;
    units = size / MIB; taken = calloc(units, 1); can_discard = num("discard", 1);
  }
  files = calloc(olds + newest + 1, sizeof *files);
  // Filled in order, by one stream.
  void *buf = buffer(256 << 10, seed);
  printf("{\"fill_mbs\": [");
  for (count = 0; count < olds + newest; count++) {
    struct file *f = begin_file(); u64 t0 = now();
    for (u64 o = 0; o < file_bytes; o += 256 << 10) { *(u64 *)buf = o; if (transfer(f->fd, 1, buf, 256 << 10, at(f, o)) != 256 << 10) die("fill"); pay(256 << 10); }
    f->whole = file_bytes; files[count] = f;
    printf("%s%.0f", count ? ", " : "", file_bytes / 1e6 / ((now() - t0) / 1e9 + 1e-9));
  }
  printf("], "); free(buf);
  growing = begin_file(); grown_next = 0;
  if (child) shared->phase = 1;
  run_phase("warm", depth, num("warm", 300000));
  if (text("mark")) { char c[512]; snprintf(c, sizeof c, "%s", text("mark")); int m = open(c, O_CREAT | O_WRONLY, 0600); if (m >= 0) close(m); until(now() + 1000000000ull); }
  if (child) shared->phase = 2;
  run_phase("main", depth, num("ops", 300000));
  if (child) {
    shared->phase = 3; until(now() + 20000000ull); shared->phase = -1; int status; waitpid(child, &status, 0);
    const char *names[] = { "neighbour_fill", "neighbour_warm", "neighbour_main" };
    for (int p = 0; p < 3; p++) { struct samples s = { 0 }; for (u64 i = 0; i < shared->of[p].n; i++) put(&s, shared->of[p].us[i] * 1000ull); print_samples(names[p], &s, 1); }
    printf("\"neighbour_status\": %d, ", status);
  }
  printf("\"errors\": %llu, \"discards\": %d}\n", (unsigned long long)errors, can_discard);
  return 0;
}

// ---- one stream ----
static u64 stream_next, stream_end; static u32 *order; static int stream_reads; static u64 *windows; static u64 window_ns;
#define WINDOWS 16384
static void *stream(void *arg) {
  struct worker *w = arg; void *buf = buffer(bs, w->rng);
  for (;;) {
    u64 o = __atomic_fetch_add(&stream_next, bs, __ATOMIC_SEQ_CST); if (o >= stream_end) break;
    if (now() - started > limit_ns) break;
    u64 t0 = now(), from = order ? order[o / MIB] * MIB + o % MIB : o; *(u64 *)buf = o;
    if (transfer(device, !stream_reads, buf, bs, from) != (ssize_t)bs) { fprintf(stderr, "churn: at %llu: %s\n", (unsigned long long)o, strerror(errno)); errors++; }
    pay(bs); u64 t1 = now(); put(&w->writes, t1 - t0); w->ops++;
    u64 k = (t1 - started) / window_ns; if (k < WINDOWS) __atomic_fetch_add(&windows[k], bs, __ATOMIC_SEQ_CST);
    if (num("pause_mib", 0) > 0 && (o + bs) % (u64)(num("pause_mib", 0) * MIB) == 0) until(now() + (u64)(num("pause_ms", 0) * 1e6));
  }
  free(buf); return NULL;
}
static int seq_main(void) {
  bs = num("bs", 262144); stream_reads = num("read", 0); int depth = num("depth", 8); limit_ns = num("secs", 3600) * 1e9; window_ns = num("window_ms", 250) * 1e6;
  device = open_target((stream_reads ? O_RDONLY : O_RDWR) | (num("direct", 1) ? O_DIRECT : 0));
  stream_next = num("off", 0) * MIB; u64 from = stream_next; stream_end = from + (u64)(num("size", 64) * MIB); windows = calloc(WINDOWS, sizeof(u64));
  if (num("shuffle", 0)) { // mebibytes, in an order from the seed
    u32 n = stream_end / MIB, low = from / MIB; u64 rng = num("seed", 1); order = malloc(n * sizeof(u32));
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u32 i = n - 1; i > low; i--) { u32 k = low + rnd(&rng) % (i - low + 1), x = order[i]; order[i] = order[k]; order[k] = x; }
  }
  struct worker *w = calloc(depth, sizeof *w); started = now();
  for (int i = 0; i < depth; i++) { w[i].rng = i + (u64)num("seed", 1) * 977; pthread_create(&w[i].thread, NULL, stream, &w[i]); }
  struct samples *x = calloc(depth, sizeof *x); u64 ops = 0;
  for (int i = 0; i < depth; i++) { pthread_join(w[i].thread, NULL); x[i] = w[i].writes; ops += w[i].ops; }
  double s = (now() - started) / 1e9;
  printf("{\"s\": %.5f, \"mbs\": %.1f, ", s, ops * bs / 1e6 / s); print_samples("request", x, depth);
  printf("\"errors\": %llu, \"window_s\": %.3f, \"windows_mbs\": [", (unsigned long long)errors, window_ns / 1e9);
  int last = (s * 1e9) / window_ns;
  for (int k = 0; k < last && k < WINDOWS; k++) printf("%s%.0f", k ? ", " : "", windows[k] / 1e6 / (window_ns / 1e9));
  printf("]}\n"); return 0;
}

// ---- random requests at random times ----
static u64 arrival, poisson_rng, poisson_size, poisson_off; static double rate;
static void *visit(void *arg) {
  struct worker *w = arg; void *buf = buffer(bs, w->rng);
  for (;;) {
    pthread_mutex_lock(&lock);
    u64 mine = arrival += -log(1 - unit(&poisson_rng)) / rate * 1e9, o = poisson_off + rnd(&poisson_rng) % (poisson_size / bs) * bs;
    int writes = rnd(&poisson_rng) % 100 < (u64)fresh;
    pthread_mutex_unlock(&lock);
    if (mine - started > limit_ns) break;
    until(mine);
    if ((writes ? pwrite(device, buf, bs, o) : pread(device, buf, bs, o)) != (ssize_t)bs) errors++;
    pay(bs); put(writes ? &w->writes : &w->reads, now() - mine);
  }
  free(buf); return NULL;
}
static int poisson_main(void) {
  bs = num("bs", 4096); rate = num("rate", 60); fresh = num("writes", 0); limit_ns = num("secs", 60) * 1e9; int depth = num("threads", 64);
  device = open(target, O_RDWR | O_DIRECT); if (device < 0) die(target);
  poisson_off = num("off", 0) * MIB; poisson_size = num("size", 64) * MIB; poisson_rng = num("seed", 1) * 7907; arrival = started = now();
  struct worker *w = calloc(depth, sizeof *w); struct samples *r = calloc(depth, sizeof *r), *x = calloc(depth, sizeof *x);
  for (int i = 0; i < depth; i++) { w[i].rng = i; pthread_create(&w[i].thread, NULL, visit, &w[i]); }
  for (int i = 0; i < depth; i++) { pthread_join(w[i].thread, NULL); r[i] = w[i].reads; x[i] = w[i].writes; }
  printf("{\"s\": %.3f, ", (now() - started) / 1e9); print_samples("read", r, depth); print_samples("write", x, depth);
  printf("\"errors\": %llu}\n", (unsigned long long)errors); return 0;
}

int main(int c, char **v) {
  if (c < 3) { fprintf(stderr, "usage: churn files|seq|poisson TARGET KEY=VALUE...\n"); return 2; }
  prctl(PR_SET_TIMERSLACK, 1); target = v[2]; words = v + 3; cost_us = num("cost", 0); memory_mbs = num("mbs", 0);
  if (!strcmp(v[1], "files")) return files_main();
  if (!strcmp(v[1], "seq")) return seq_main();
  if (!strcmp(v[1], "poisson")) return poisson_main();
  fprintf(stderr, "churn: no load %s\n", v[1]); return 2;
}
