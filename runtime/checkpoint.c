/* checkpoint.c: saves and loads a run's state so that a crash at any moment, a full disk or a flipped bit
 * loses no older save. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint.h"
#include "runtime/files.h"

static const char MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors",
                  STATE[] = "state.json", MANIFEST[] = "MANIFEST";

/* Tensors of one of the two files. */
static HostTensor *select_tensors(Arena *a, const HostTensor *t, uint32_t n, bool in_optimizer,
                                  uint32_t *n_out) {
  HostTensor *out = ARENA_ARRAY(a, HostTensor, n);
  *n_out = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (t[i].in_optimizer == in_optimizer) {
      out[(*n_out)++] = t[i];
    }
  }
  return out;
}

/* ---- saving ---- */

typedef struct {
  Arena arena;
  const char *folder;
  Str manifest;
  Error *err;
} Save;

static void note(Save *s, const char *sum, const char *name) {
  str_printf(&s->manifest, "%s  %s\n", sum, name);
}

static bool save_tensors(Save *s, const char *name, const HostTensor *t, uint32_t n,
                         const TrainState *state) {
  char sum[65];
  const char *meta[] = {"step", arena_printf(&s->arena, "%lld", (long long)state->step)};
  if (!tensorfile_write(arena_printf(&s->arena, "%s/%s", s->folder, name), t, n, meta, 1, sum, s->err)) {
    return false;
  }
  note(s, sum, name);
  return true;
}

static bool save_text(Save *s, const char *name, const Str *text, bool listed) {
  char sum[65];
  sha256_hex(text->s, text->len, sum);
  if (listed) {
    note(s, sum, name);
  }
  return file_write(arena_printf(&s->arena, "%s/%s", s->folder, name), text->s, text->len, s->err);
}

/* Seeds have 64 bits, more than the integers of many JSON readers: they are text. */
static bool save_state(Save *s, const TrainState *state) {
  Str text = {0};
  str_printf(&text, "{\n \"step\": %lld,\n \"sample\": %lld,\n \"seed\": \"%" PRIu64 "\",\n \"loss_scale\": ",
             (long long)state->step, (long long)state->sample, state->seed);
  str_put_double(&text, state->loss_scale);
  str_puts(&text, ",\n \"plan_hash\": ");
  str_put_json(&text, state->plan_hash ? state->plan_hash : "");
  str_puts(&text, "\n}\n");
  bool ok = save_text(s, STATE, &text, true);
  str_free(&text);
  return ok;
}

static bool fill_folder(Save *s, const TrainState *state, const HostTensor *t, uint32_t n) {
  uint32_t n_model, n_optimizer;
  const HostTensor *model = select_tensors(&s->arena, t, n, false, &n_model);
  const HostTensor *optimizer = select_tensors(&s->arena, t, n, true, &n_optimizer);
  bool ok = save_tensors(s, MODEL, model, n_model, state) &&
            (!n_optimizer || save_tensors(s, OPTIMIZER, optimizer, n_optimizer, state)) &&
            save_state(s, state) && save_text(s, MANIFEST, &s->manifest, false);
  if (ok) {
    sync_folder(s->folder);
  }
  return ok;
}

/* The finished folder gets its name. One that is there already (the same step saved again) changes places
 * with it. */
static bool put_in_place(Save *s, const char *final) {
  if (!renameat2(AT_FDCWD, s->folder, AT_FDCWD, final, RENAME_NOREPLACE)) {
    return true;
  }
  if (errno == EEXIST && !renameat2(AT_FDCWD, s->folder, AT_FDCWD, final, RENAME_EXCHANGE)) {
    remove_tree(s->folder);
    return true;
  }
  if (errno == EINVAL) { /* a file system without these flags */
    if (!file_exists(final) || remove_tree(final)) {
      if (!rename(s->folder, final)) {
        return true;
      }
    }
  }
  return error_set(s->err, ERR_RUN, "cannot rename %s to %s: %s", s->folder, final, strerror(errno));
}

static bool move_latest(Save *s, const char *run, const char *name) {
  const char *part = arena_printf(&s->arena, "%s/latest.part", run);
  unlink(part);
  if (symlink(name, part) || rename(part, arena_printf(&s->arena, "%s/latest", run))) {
    return error_set(s->err, ERR_RUN, "cannot move %s/latest: %s", run, strerror(errno));
  }
  sync_folder(run);
  return true;
}

/* Deletes steps before this one beyond the newest `keep`. */
static void prune(Save *s, const char *run, int64_t step, int64_t keep) {
  int64_t *steps;
  uint32_t n = checkpoint_list(run, &s->arena, &steps);
  int64_t kept = 0;
  for (uint32_t i = 0; i < n && keep > 0; i++) { /* newest first */
    if (steps[i] <= step && kept++ >= keep) {
      remove_tree(checkpoint_folder(&s->arena, run, steps[i]));
    }
  }
}

static bool save_all(Save *s, const char *run, const TrainState *state, const HostTensor *t, uint32_t n,
                     int64_t keep) {
  const char *final = checkpoint_folder(&s->arena, run, state->step);
  s->folder = arena_printf(&s->arena, "%s/.saving", run);
  remove_tree(s->folder); /* of a run that was killed while it saved */
  if (mkdir(s->folder, 0777)) {
    return error_set(s->err, ERR_RUN, "cannot make %s: %s", s->folder, strerror(errno));
  }
  if (!fill_folder(s, state, t, n) || !put_in_place(s, final)) {
    remove_tree(s->folder);
    return false;
  }
  sync_folder(run);
  if (!checkpoint_verify(final, s->err) || !move_latest(s, run, strrchr(final, '/') + 1)) {
    return false;
  }
  prune(s, run, state->step, keep);
  return true;
}

bool checkpoint_save(const char *run, const TrainState *state, const HostTensor *t, uint32_t n, int64_t keep,
                     Error *err) {
  Save s = {.err = err};
  bool ok = save_all(&s, run, state, t, n, keep);
  str_free(&s.manifest);
  arena_free(&s.arena);
  return ok;
}

/* ---- verifying ---- */

/* One line: 64 digits, two spaces, a plain name. */
static bool parse_line(char *line, char **sum, char **name) {
  if (strlen(line) < 67 || strspn(line, "0123456789abcdef") != 64 || line[64] != ' ' || line[65] != ' ' ||
      strchr(line + 66, '/')) {
    return false;
  }
  line[64] = 0;
  *sum = line;
  *name = line + 66;
  return true;
}

static bool verify_file(const char *dir, const char *name, const char *sum, Arena *a, Error *err) {
  char now[65];
  const char *path = arena_printf(a, "%s/%s", dir, name);
  if (!file_exists(path)) {
    return error_set(err, ERR_INPUT, "%s: missing, though MANIFEST lists it", path);
  }
  if (!file_sha256(path, now, err)) {
    return false;
  }
  return !strcmp(now, sum) ||
         error_set(err, ERR_INPUT, "%s: damaged: its checksum is not the one in MANIFEST", path);
}

static bool verify_lines(const char *dir, char *text, Arena *a, bool *has_optimizer, Error *err) {
  bool model = false, state = false;
  char *rest = text;
  for (char *line; (line = strsep(&rest, "\n")) && *line;) {
    char *sum, *name;
    if (!parse_line(line, &sum, &name)) {
      return error_set(err, ERR_INPUT, "%s/MANIFEST: damaged: a line is not a checksum and a name", dir);
    }
    if (!verify_file(dir, name, sum, a, err)) {
      return false;
    }
    model = model || !strcmp(name, MODEL);
    state = state || !strcmp(name, STATE);
    *has_optimizer = *has_optimizer || !strcmp(name, OPTIMIZER);
  }
  return (model && state) ||
         error_set(err, ERR_INPUT, "%s/MANIFEST: damaged: it does not list %s", dir, model ? STATE : MODEL);
}

static bool verify(const char *dir, bool *has_optimizer, Error *err) {
  Arena a = {0};
  char *text;
  size_t n;
  const char *path = arena_printf(&a, "%s/%s", dir, MANIFEST);
  *has_optimizer = false;
  bool ok =
      file_exists(path) || error_set(err, ERR_INPUT, "%s has no MANIFEST: it is not a whole checkpoint", dir);
  ok = ok && file_read(path, &a, &text, &n, err) && verify_lines(dir, text, &a, has_optimizer, err);
  arena_free(&a);
  return ok;
}

bool checkpoint_verify(const char *dir, Error *err) {
  bool has_optimizer;
  return verify(dir, &has_optimizer, err);
}

/* ---- loading ---- */

static bool load_state(const char *path, Arena *a, TrainState *s, Error *err) {
  json_error_t why;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
  const json_t *step = json_object_get(root, "step"), *sample = json_object_get(root, "sample");
  const json_t *scale = json_object_get(root, "loss_scale");
  const char *seed = json_string_value(json_object_get(root, "seed"));
  const char *hash = json_string_value(json_object_get(root, "plan_hash"));
  char *end = NULL;
  bool ok = json_is_integer(step) && json_is_integer(sample) && json_is_number(scale) && seed && hash;
  if (ok) {
    *s = (TrainState){.step = json_integer_value(step),
                      .sample = json_integer_value(sample),
                      .seed = strtoull(seed, &end, 10),
                      .loss_scale = json_number_value(scale),
                      .plan_hash = arena_strdup(a, hash)};
    ok = *seed && !*end;
  }
  if (!ok) {
    error_set(err, ERR_INPUT, "%s: %s", path,
              root ? "it lacks step, sample, seed, loss_scale or plan_hash" : why.text);
  }
  json_decref(root);
  return ok;
}

static bool load_file(const char *path, const HostTensor *t, uint32_t n, Error *err) {
  TensorFile *f = tensorfile_open(path, err);
  bool ok = f && tensors_load(f, t, n, NULL, false, false, err);
  tensorfile_close(f);
  return ok;
}

bool checkpoint_load(const char *dir, const HostTensor *t, uint32_t n, Arena *a, TrainState *s, Error *err) {
  uint32_t n_model, n_optimizer;
  bool has_optimizer;
  TrainState ignored;
  const HostTensor *model = select_tensors(a, t, n, false, &n_model);
  const HostTensor *optimizer = select_tensors(a, t, n, true, &n_optimizer);
  if (!verify(dir, &has_optimizer, err) ||
      !load_state(arena_printf(a, "%s/%s", dir, STATE), a, s ? s : &ignored, err) ||
      !load_file(arena_printf(a, "%s/%s", dir, MODEL), model, n_model, err)) {
    return false;
  }
  if (!n_optimizer) {
    return true;
  }
  return has_optimizer ? load_file(arena_printf(a, "%s/%s", dir, OPTIMIZER), optimizer, n_optimizer, err)
                       : error_set(err, ERR_INPUT, "%s holds no optimizer state", dir);
}
