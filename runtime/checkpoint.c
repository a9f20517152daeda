/* checkpoint.c: checkpoints that are whole or not there.
 *
 * Everything is written into RUN/.step-NNNNNN.part, synced, summed in MANIFEST (last), and then renamed: a folder called
 * step-NNNNNN is complete unless the disk changed it, which the sums tell. `latest` is a link that moves by rename. */
#include "runtime/files.h"
#include "runtime/runtime.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const sides[] = {"model.safetensors", "optimizer.safetensors"};

/* ---- saving ---- */

static bool write_state(const char *path, const TrainState *s, Error *err) {
  Str t = {0};
  str_printf(&t, "{\"step\": %lld, \"sample\": %lld, \"seed\": %llu, \"loss_scale\": ", (long long)s->step, (long long)s->sample,
             (unsigned long long)s->seed);
  str_put_double(&t, s->loss_scale);
  str_puts(&t, ", \"plan_hash\": ");
  str_put_json(&t, s->plan_hash ? s->plan_hash : "");
  str_puts(&t, "}\n");
  bool ok = file_write(path, t.s, t.len, err);
  str_free(&t);
  return ok;
}

/* The tensors of one side (model or optimizer), in order. */
static uint32_t choose(Arena *a, const HostTensor *t, uint32_t n, bool optimizer, HostTensor **out) {
  uint32_t k = 0;
  *out = ARENA_ARRAY(a, HostTensor, n);
  for (uint32_t i = 0; i < n; i++) {
    if (t[i].in_optimizer == optimizer) {
      (*out)[k++] = t[i];
    }
  }
  return k;
}

static bool write_parts(Arena *a, const char *dir, const TrainState *s, const HostTensor *t, uint32_t n, Error *err) {
  Str manifest = {0};
  bool ok = true;
  for (int side = 0; ok && side < 2; side++) {
    HostTensor *part;
    uint32_t k = choose(a, t, n, side == 1, &part);
    char sum[65];
    if (side == 0 || k) {
      ok = tensorfile_write(arena_printf(a, "%s/%s", dir, sides[side]), part, k, NULL, 0, sum, err);
      str_printf(&manifest, "%s  %s\n", sum, sides[side]);
    }
  }
  const char *state = arena_printf(a, "%s/state.json", dir);
  char sum[65];
  ok = ok && write_state(state, s, err) && file_sha256(state, sum, err);
  str_printf(&manifest, "%s  state.json\n", sum);
  ok = ok && file_write(arena_printf(a, "%s/MANIFEST", dir), manifest.s, manifest.len, err);
  str_free(&manifest);
  return ok;
}

static bool move_latest(Arena *a, const char *run, const char *name, Error *err) {
  const char *link = arena_printf(a, "%s/latest", run), *aside = arena_printf(a, "%s/.latest.part", run);
  unlink(aside);
  if (symlink(name, aside) || rename(aside, link)) {
    return error_set(err, ERR_RUN, "%s: cannot move the link: %s", link, strerror(errno));
  }
  return true;
}

static int64_t step_of(const char *name) {
  size_t digits = strncmp(name, "step-", 5) ? 0 : strspn(name + 5, "0123456789");
  return digits && !name[5 + digits] ? strtoll(name + 5, NULL, 10) : -1;
}

/* Steps saved in a run's folder, newest first. */
static uint32_t saved_steps(Arena *a, const char *run, int64_t **out) {
  DIR *d = opendir(run);
  int64_t *v = NULL;
  uint32_t n = 0, cap = 0;
  for (struct dirent *e; d && (e = readdir(d));) {
    int64_t step = step_of(e->d_name);
    if (step >= 0) {
      VEC_PUSH(a, v, n, cap, step);
      for (uint32_t i = n - 1; i > 0 && v[i] > v[i - 1]; i--) {
        int64_t swap = v[i];
        v[i] = v[i - 1];
        v[i - 1] = swap;
      }
    }
  }
  if (d) {
    closedir(d);
  }
  *out = v;
  return n;
}

static const char *step_path(Arena *a, const char *run, int64_t step) { return arena_printf(a, "%s/step-%06lld", run, (long long)step); }

static void drop_old(Arena *a, const char *run, int64_t keep, int64_t current) {
  int64_t *step;
  uint32_t n = saved_steps(a, run, &step), kept = 0;
  for (uint32_t i = 0; keep > 0 && i < n; i++) {
    if (step[i] == current || kept < (uint32_t)keep) {
      kept++;
    } else {
      remove_tree(step_path(a, run, step[i]));
    }
  }
}

bool checkpoint_save(const char *run, const TrainState *s, const HostTensor *t, uint32_t n, int64_t keep, Error *err) {
  Arena a = {0};
  const char *name = arena_printf(&a, "step-%06lld", (long long)s->step);
  const char *final = arena_printf(&a, "%s/%s", run, name), *part = arena_printf(&a, "%s/.%s.part", run, name);
  remove_tree(part);
  bool ok = mkdir(part, 0777) == 0 || error_set(err, ERR_RUN, "%s: cannot make it: %s", part, strerror(errno));
  ok = ok && write_parts(&a, part, s, t, n, err);
  if (ok) {
    sync_folder(part);
    Error damaged = {0};
    if (file_exists(final) && !checkpoint_verify(final, &damaged)) {
      remove_tree(final);
    } else if (file_exists(final)) { /* the same step once more: the old one goes only when the new one stands */
      const char *old = arena_printf(&a, "%s/.%s.old", run, name);
      remove_tree(old);
      ok = rename(final, old) == 0;
      ok = ok && rename(part, final) == 0;
      remove_tree(old);
    }
    if (ok && !file_exists(final) && rename(part, final)) {
      ok = false;
    }
    if (!ok) {
      error_set(err, ERR_RUN, "%s: cannot put the checkpoint in place: %s", final, strerror(errno));
    }
  }
  if (ok) {
    sync_folder(run);
    ok = move_latest(&a, run, name, err);
    drop_old(&a, run, keep, s->step);
  } else {
    remove_tree(part);
  }
  arena_free(&a);
  return ok;
}

/* ---- finding and checking ---- */

bool checkpoint_verify(const char *dir, Error *err) {
  Arena a = {0};
  char *text;
  size_t n;
  uint32_t files = 0;
  if (!file_read(arena_printf(&a, "%s/MANIFEST", dir), &a, &text, &n, err)) {
    arena_free(&a);
    return false;
  }
  bool ok = true, state = false;
  for (char *save, *line = strtok_r(text, "\n", &save); line && ok; line = strtok_r(NULL, "\n", &save)) {
    char want[65], name[128], have[65];
    if (sscanf(line, "%64[0-9a-f]  %127[a-z.]", want, name) != 2 || strlen(want) != 64 || strchr(name, '/')) {
      ok = error_set(err, ERR_INPUT, "%s/MANIFEST is damaged", dir);
      break;
    }
    const char *path = arena_printf(&a, "%s/%s", dir, name);
    ok = file_sha256(path, have, err) && (!strcmp(want, have) || error_set(err, ERR_INPUT, "%s is damaged: its sum is not the one in MANIFEST", path));
    state |= !strcmp(name, "state.json");
    files++;
  }
  ok = ok && ((files >= 2 && state) || error_set(err, ERR_INPUT, "%s/MANIFEST is damaged: files are missing from it", dir));
  arena_free(&a);
  return ok;
}

static void fill_path(Arena *a, const char *run, int64_t step, CheckpointPath *out) {
  out->dir = step_path(a, run, step);
  out->model = arena_printf(a, "%s/model.safetensors", out->dir);
  out->run = arena_strdup(a, run);
  out->step = step;
}

bool checkpoint_latest(const char *run, Arena *a, CheckpointPath *out, bool *found, char **skipped, Error *err) {
  int64_t *step;
  uint32_t n = saved_steps(a, run, &step);
  Error first = {0};
  *found = false;
  *skipped = NULL;
  for (uint32_t i = 0; i < n; i++) {
    Error e = {0};
    if (checkpoint_verify(step_path(a, run, step[i]), &e)) {
      fill_path(a, run, step[i], out);
      *found = true;
      return true;
    }
    if (!first.cls) {
      first = e;
      *skipped = arena_printf(a, "skipped a damaged checkpoint: %s", e.msg);
    }
  }
  if (n) {
    return error_set(err, ERR_INPUT, "%s: every checkpoint is damaged: %s", run, first.msg);
  }
  return true;
}

bool checkpoint_find(const char *from, Arena *a, CheckpointPath *out, char **skipped, Error *err) {
  struct stat st;
  *skipped = NULL;
  *out = (CheckpointPath){.step = -1};
  if (stat(from, &st)) {
    return error_set(err, ERR_INPUT, "--from %s: %s", from, strerror(errno));
  }
  if (!S_ISDIR(st.st_mode)) {
    out->model = arena_strdup(a, from);
    return true;
  }
  if (file_exists(arena_printf(a, "%s/model.safetensors", from))) {
    char *real = realpath(from, NULL);
    out->dir = arena_strdup(a, real ? real : from);
    free(real);
    out->model = arena_printf(a, "%s/model.safetensors", out->dir);
    const char *slash = strrchr(out->dir, '/');
    out->run = slash ? arena_strndup(a, out->dir, (size_t)(slash - out->dir)) : ".";
    out->step = step_of(slash ? slash + 1 : out->dir);
    return true;
  }
  bool found;
  if (!checkpoint_latest(from, a, out, &found, skipped, err)) {
    return false;
  }
  return found || error_set(err, ERR_INPUT, "--from %s: no checkpoint there yet", from);
}

/* ---- loading ---- */

static bool read_state(Arena *a, const char *path, TrainState *s, Error *err) {
  char *text;
  size_t n;
  if (!file_read(path, a, &text, &n, err)) {
    return false;
  }
  json_error_t je;
  json_t *j = json_loadb(text, n, 0, &je);
  json_int_t step, sample, seed;
  double scale;
  const char *hash;
  bool ok = j && json_unpack(j, "{s:I, s:I, s:I, s:F, s:s}", "step", &step, "sample", &sample, "seed", &seed, "loss_scale", &scale, "plan_hash", &hash) == 0;
  if (ok) {
    *s = (TrainState){.step = step, .sample = sample, .seed = (uint64_t)seed, .loss_scale = scale, .plan_hash = arena_strdup(a, hash)};
  } else {
    error_set(err, ERR_INPUT, "%s is not the state of a run: %s", path, j ? "a field is missing" : je.text);
  }
  json_decref(j);
  return ok;
}

bool checkpoint_load(const char *dir, const HostTensor *t, uint32_t n, Arena *a, TrainState *s, Error *err) {
  if (!checkpoint_verify(dir, err) || (s && !read_state(a, arena_printf(a, "%s/state.json", dir), s, err))) {
    return false;
  }
  bool ok = true;
  for (int side = 0; ok && side < 2; side++) {
    HostTensor *part;
    uint32_t k = choose(a, t, n, side == 1, &part);
    if (side == 1 && !k) {
      continue;
    }
    TensorFile *f = tensorfile_open(arena_printf(a, "%s/%s", dir, sides[side]), err);
    ok = f && tensors_load(f, part, k, NULL, false, false, err);
    tensorfile_close(f);
  }
  return ok;
}
