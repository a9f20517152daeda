/* read.c: reads the canonical text of print.c. Strict: words in the printed order, values numbered from 0 as
 * they appear, the printed types equal to the inferred ones; blanks and newlines are free. What it returns
 * has passed the verifier. */
#include "ir/ir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_WORD = 256 };

typedef struct {
  const char *p, *end, *path;
  uint32_t line;
  Module *m;
  Func *f;
  Val *map; /* printed number -> value; NONE: results of an op whose body is being read */
  uint32_t n_map, cap_map;
  Error *err;
} Reader;

static bool fail(Reader *r, const char *what) {
  return error_set(r->err, ERR_INPUT, "%s:%u: %s", r->path, r->line, what);
}

/* ---- words ---- */

static void blanks(Reader *r) {
  while (r->p < r->end && (*r->p == ' ' || *r->p == '\n')) {
    r->line += *r->p++ == '\n';
  }
}

static bool word_char(char c) {
  return (unsigned char)c > ' ' && c != 0x7f && !strchr(",=[](){}%\":@", c);
}

/* The next word, without consuming it; empty at punctuation. */
static size_t peek_word(Reader *r) {
  blanks(r);
  size_t n = 0;
  while (r->p + n < r->end && n < MAX_WORD && word_char(r->p[n])) {
    n++;
  }
  return n;
}

static bool word(Reader *r, char out[MAX_WORD]) {
  size_t n = peek_word(r);
  if (n == 0 || n == MAX_WORD) {
    return fail(r, "expected a word");
  }
  memcpy(out, r->p, n);
  out[n] = 0;
  r->p += n;
  return true;
}

static bool accept_word(Reader *r, const char *text) {
  size_t n = strlen(text);
  if (peek_word(r) != n || memcmp(r->p, text, n)) {
    return false;
  }
  r->p += n;
  return true;
}

static bool accept(Reader *r, char c) {
  blanks(r);
  if (r->p == r->end || *r->p != c) {
    return false;
  }
  r->p++;
  return true;
}

static bool expect(Reader *r, char c) {
  return accept(r, c) || error_set(r->err, ERR_INPUT, "%s:%u: expected '%c'", r->path, r->line, c);
}

static bool expect_word(Reader *r, const char *text) {
  return accept_word(r, text) || error_set(r->err, ERR_INPUT, "%s:%u: expected '%s'", r->path, r->line, text);
}

static bool integer(Reader *r, int64_t *out) {
  char text[MAX_WORD], *end;
  if (!word(r, text)) {
    return false;
  }
  errno = 0;
  *out = strtoll(text, &end, 10);
  return (!*end && !errno && text[0] != '+') || fail(r, "expected a whole number");
}

static bool unsigned32(Reader *r, uint32_t *out) {
  int64_t v;
  if (!integer(r, &v)) {
    return false;
  }
  *out = (uint32_t)v;
  return (v >= 0 && v <= UINT32_MAX) || fail(r, "number out of range");
}

static bool real(Reader *r, double *out) {
  char text[MAX_WORD], *end;
  if (!word(r, text)) {
    return false;
  }
  *out = strtod(text, &end);
  return !*end || fail(r, "expected a number");
}

static bool hex_escape(Reader *r, Str *s) {
  unsigned v = 0;
  for (int i = 0; i < 4; i++) {
    char c = r->p < r->end ? *r->p++ : 0;
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
      return fail(r, "bad escape in a string");
    }
    v = v * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  if (v == 0 || v > 0x7f) {
    return fail(r, "bad escape in a string");
  }
  str_putc(s, (char)v);
  return true;
}

static bool string(Reader *r, const char **out) {
  Str s = {0};
  bool ok = expect(r, '"'), closed = false;
  while (ok && !closed) {
    char c = r->p < r->end ? *r->p++ : '\n';
    if (c == '\n' || c == 0) {
      ok = fail(r, "a string does not end on its line");
    } else if (c == '"') {
      closed = true;
    } else if (c != '\\') {
      str_putc(&s, c);
    } else {
      char e = r->p < r->end ? *r->p++ : 0;
      if (e == 'u') {
        ok = hex_escape(r, &s);
      } else if (e == 'n' || e == '"' || e == '\\') {
        str_putc(&s, e == 'n' ? '\n' : e);
      } else {
        ok = fail(r, "bad escape in a string");
      }
    }
  }
  *out = ok ? arena_strndup(&r->m->arena, s.s ? s.s : "", s.len) : NULL;
  str_free(&s);
  return ok;
}

static bool optional_string(Reader *r, const char **out) {
  *out = NULL;
  blanks(r);
  return r->p == r->end || *r->p != '"' || string(r, out);
}

/* One of `n` words, as its index. */
static bool choice(Reader *r, const char *const *words, uint32_t n, uint32_t *out) {
  for (*out = 0; *out < n; ++*out) {
    if (accept_word(r, words[*out])) {
      return true;
    }
  }
  return fail(r, "unknown word");
}

/* ---- types, places ---- */

static bool axis(Reader *r, Axis *out) {
  char name[MAX_WORD];
  if (!word(r, name)) {
    return false;
  }
  *out = ir_axis(r->m, name);
  return true;
}

static bool type(Reader *r, Type *out) {
  char name[MAX_WORD];
  DType d;
  if (!word(r, name) || !dtype_parse(name, strlen(name), &d)) {
    return fail(r, "expected a dtype");
  }
  *out = type_scalar(d);
  if (!accept(r, '[')) {
    return true;
  }
  do {
    Axis a;
    int64_t size, bytes;
    if (!axis(r, &a) || !expect(r, '=') || !integer(r, &size)) {
      return false;
    }
    if (!type_push(out, a, size) || !type_bytes(out, &bytes)) {
      return fail(r, "an axis is there twice, has no positive size, or makes the tensor too large");
    }
  } while (accept(r, ','));
  return expect(r, ']');
}

static bool place(Reader *r, Loc *loc) {
  return unsigned32(r, &loc->file) && expect(r, ':') && unsigned32(r, &loc->line) && expect(r, ':') &&
         unsigned32(r, &loc->col);
}

/* ---- values ---- */

/* Takes the next number for a value that is about to be defined. */
static bool define(Reader *r, Val v) {
  uint32_t n;
  if (!expect(r, '%') || !unsigned32(r, &n)) {
    return false;
  }
  if (n != r->n_map) {
    return fail(r, "values are numbered from 0 in the order in which they appear");
  }
  VEC_PUSH(&r->m->arena, r->map, r->n_map, r->cap_map, v);
  return true;
}

static bool use(Reader *r, Val *out) {
  uint32_t n;
  if (!expect(r, '%') || !unsigned32(r, &n)) {
    return false;
  }
  *out = n < r->n_map ? r->map[n] : NONE;
  return *out != NONE || fail(r, "a value is used before it is defined");
}

/* A list of used values, possibly empty; *n of them in the arena. */
static bool uses(Reader *r, Val **out, uint32_t *n) {
  uint32_t cap = 0;
  *out = NULL;
  *n = 0;
  blanks(r);
  if (r->p == r->end || *r->p != '%') {
    return true;
  }
  do {
    Val v;
    if (!use(r, &v)) {
      return false;
    }
    VEC_PUSH(&r->m->arena, *out, *n, cap, v);
  } while (accept(r, ','));
  return true;
}

/* ---- blocks ---- */

static bool params(Reader *r, Block *b, bool of_func) {
  static const char *const kind[] = {"param", "opt", "state", "input", "scalar", "grad", "factor"};
  if (!expect(r, '(') || accept(r, ')')) {
    return r->err->cls == ERR_NONE;
  }
  do {
    Type t;
    const char *name;
    uint32_t k = 0, index = 0;
    if (!define(r, r->f->n_vals) || !expect(r, ':') || !type(r, &t) ||
        (of_func && (!choice(r, kind, sizeof kind / sizeof *kind, &k) || !unsigned32(r, &index))) ||
        !optional_string(r, &name)) {
      return false;
    }
    if (of_func) {
      ir_func_arg(r->f, (ArgKind)k, index, t, name);
    } else {
      ir_param(r->f, b, t, name);
    }
  } while (accept(r, ','));
  return expect(r, ')');
}

static bool ops(Reader *r, Block *b, int depth);

static Block *body(Reader *r, int depth) {
  Val *ret;
  uint32_t n;
  Block *b = ir_block_new(r->f);
  if (depth == MAX_DEPTH) {
    fail(r, "bodies are nested too deeply");
    return NULL;
  }
  if (!expect(r, '{') || !params(r, b, false) || !ops(r, b, depth + 1) || !expect_word(r, "yield") ||
      !uses(r, &ret, &n) || !expect(r, '}')) {
    return NULL;
  }
  for (uint32_t i = 0; i < n; i++) {
    ir_block_ret(r->f, b, ret[i]);
  }
  return b;
}

static bool attributes(Reader *r, OpCode code, Attr *a) {
  uint32_t cap = 0;
  Axis *ax = NULL;
  int64_t *num = NULL;
  if (accept_word(r, "axis")) {
    if (!expect(r, '(')) {
      return false;
    }
    do {
      Axis v;
      if (!axis(r, &v)) {
        return false;
      }
      VEC_PUSH(&r->m->arena, ax, a->n_axis, cap, v);
    } while (accept(r, ','));
    if (!expect(r, ')')) {
      return false;
    }
  }
  cap = 0;
  if (accept_word(r, "num")) {
    if (!expect(r, '(')) {
      return false;
    }
    do {
      int64_t v;
      if (!integer(r, &v)) {
        return false;
      }
      VEC_PUSH(&r->m->arena, num, a->n_num, cap, v);
    } while (accept(r, ','));
    if (!expect(r, ')')) {
      return false;
    }
  }
  a->axis = ax;
  a->num = num;
  return (code != OP_CONST || real(r, &a->f)) && optional_string(r, &a->str);
}

static bool op_code(Reader *r, OpCode *out) {
  char name[MAX_WORD];
  if (!word(r, name)) {
    return false;
  }
  for (int c = 0; c < OP_COUNT; c++) {
    if (!strcmp(name, ir_op_info[c].text)) {
      *out = (OpCode)c;
      return true;
    }
  }
  return error_set(r->err, ERR_INPUT, "%s:%u: there is no op '%s'", r->path, r->line, name);
}

static bool result_types(Reader *r, Type **out, uint32_t n) {
  *out = ARENA_ARRAY(&r->m->arena, Type, n);
  for (uint32_t i = 0; i < n; i++) {
    if ((i && !expect(r, ',')) || !type(r, &(*out)[i])) {
      return false;
    }
  }
  return true;
}

/* Builds the op and compares what the builder inferred with what was printed. */
static bool build(Reader *r, Block *b, OpCode code, Loc loc, const Val *arg, uint32_t n_args, Attr *a,
                  Block *inner, const Type *types, uint32_t n, Val *result) {
  Error err = {0};
  if (ir_op_info[code].n_results >= 0 ? n != (uint32_t)ir_op_info[code].n_results : n != inner->n_ret) {
    return fail(r, "wrong number of results");
  }
  a->dtype = n ? types[0].dtype : DT_F32;
  *result = ir_op(&(Builder){.f = r->f, .b = b, .loc = loc, .err = &err}, code, arg, n_args, a, inner);
  if (err.cls != ERR_NONE) {
    return fail(r, err.msg);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!type_equal(&types[i], ir_type(r->f, *result + i))) {
      Str s = {0};
      type_print(r->m, ir_type(r->f, *result + i), &s);
      error_set(r->err, ERR_INPUT, "%s:%u: the result of %s is %s", r->path, r->line, ir_op_info[code].text,
                s.s);
      str_free(&s);
      return false;
    }
  }
  return true;
}

static bool op(Reader *r, Block *b, int depth) {
  uint32_t first = r->n_map, n_args, line = r->line;
  do {
    if (!define(r, NONE)) {
      return false;
    }
  } while (accept(r, ','));
  uint32_t n = r->n_map - first;
  OpCode code = OP_COUNT;
  Val *arg, result;
  Type *types;
  Attr a = {0};
  Loc loc = {NONE, 0, 0};
  Block *inner = NULL;
  if (!expect(r, '=') || !op_code(r, &code) || !uses(r, &arg, &n_args) || !attributes(r, code, &a) ||
      !expect(r, ':') || !result_types(r, &types, n)) {
    return false;
  }
  if ((ir_op_info[code].flags & F_BODY) && !(inner = body(r, depth))) {
    return false;
  }
  if (accept(r, '@') && (!place(r, &loc) || loc.file == NONE || !loc.line)) {
    return fail(r, "expected a place");
  }
  if (r->err->cls != ERR_NONE) {
    return false;
  }
  uint32_t next = r->line;
  r->line = line; /* what is wrong with the op is said at its line */
  if (!build(r, b, code, loc, arg, n_args, &a, inner, types, n, &result)) {
    return false;
  }
  r->line = next;
  for (uint32_t i = 0; i < n; i++) {
    r->map[first + i] = result + i;
  }
  while (peek_word(r) && *r->p >= '0' && *r->p <= '9') {
    uint32_t which;
    const char *name;
    if (!unsigned32(r, &which) || which >= n || !string(r, &name)) {
      return fail(r, "expected the name of a result");
    }
    r->f->val[result + which].name = name;
  }
  return true;
}

static bool ops(Reader *r, Block *b, int depth) {
  blanks(r);
  while (r->p < r->end && *r->p == '%') {
    if (!op(r, b, depth)) {
      return false;
    }
    blanks(r);
  }
  return true;
}

static bool func(Reader *r) {
  static const char *const kind[] = {"loss",  "num", "den",   "metric_num", "metric_den", "output",
                                     "param", "opt", "state", "grad",       "scalar"};
  char name[MAX_WORD];
  if (!word(r, name)) {
    return false;
  }
  r->f = ir_func_new(r->m, name);
  r->n_map = 0;
  if (!params(r, r->f->body, true) || !expect(r, '{') || !ops(r, r->f->body, 0)) {
    return false;
  }
  while (accept_word(r, "return")) {
    FuncRes res = {0};
    Val v;
    uint32_t k;
    if (!use(r, &v) || !choice(r, kind, sizeof kind / sizeof *kind, &k) || !unsigned32(r, &res.index) ||
        !real(r, &res.coef) || !optional_string(r, &res.name)) {
      return false;
    }
    res.kind = (ResKind)k;
    ir_func_ret(r->f, res, v);
  }
  return expect(r, '}');
}

/* ---- tables ---- */

static bool param_row(Reader *r) {
  static const char *const init[] = {"normal", "uniform", "fill"};
  Module *m = r->m;
  IrParam p = {0};
  uint32_t k;
  if (!string(r, &p.name) || !type(r, &p.type) || !expect_word(r, "repeat") || !unsigned32(r, &p.n_repeat) ||
      !choice(r, init, 3, &k) || !real(r, &p.a) || !real(r, &p.b)) {
    return false;
  }
  p.init = (InitKind)k;
  p.frozen = accept_word(r, "frozen");
  p.matrix = accept_word(r, "matrix");
  if (!expect_word(r, "group") || !unsigned32(r, &p.group) || !expect(r, '@') || !place(r, &p.loc)) {
    return false;
  }
  VEC_PUSH(&m->arena, m->param, m->n_params, m->cap_params, p);
  return true;
}

static bool state_row(Reader *r, IrState *s) {
  static const char *const start[] = {"fill", "copy"};
  uint32_t k;
  if (!string(r, &s->name) || !type(r, &s->type) || !expect_word(r, "param") || !unsigned32(r, &s->param) ||
      !choice(r, start, 2, &k) || !real(r, &s->fill) || !expect_word(r, "repeat") ||
      !unsigned32(r, &s->n_repeat)) {
    return false;
  }
  s->from_param = k == 1;
  return true;
}

static bool tables(Reader *r) {
  Module *m = r->m;
  while (accept_word(r, "file")) {
    const char *path;
    if (!string(r, &path)) {
      return false;
    }
    VEC_PUSH(&m->arena, m->file, m->n_files, m->cap_files, path);
  }
  while (accept_word(r, "param")) {
    if (!param_row(r)) {
      return false;
    }
  }
  while (accept_word(r, "opt")) {
    IrState s = {0};
    if (!state_row(r, &s)) {
      return false;
    }
    VEC_PUSH(&m->arena, m->opt, m->n_opt, m->cap_opt, s);
  }
  while (accept_word(r, "state")) {
    IrState s = {0};
    if (!state_row(r, &s)) {
      return false;
    }
    VEC_PUSH(&m->arena, m->state, m->n_states, m->cap_states, s);
  }
  while (accept_word(r, "input")) {
    IrInput in = {0};
    if (!string(r, &in.name) || !type(r, &in.type) || !expect(r, '@') || !place(r, &in.loc)) {
      return false;
    }
    VEC_PUSH(&m->arena, m->input, m->n_inputs, m->cap_inputs, in);
  }
  return true;
}

static bool module(Reader *r) {
  char name[MAX_WORD];
  if (!expect_word(r, "module") || !word(r, name)) {
    return false;
  }
  if (!dtype_parse(name, strlen(name), &r->m->real)) {
    return fail(r, "expected a dtype");
  }
  if (!tables(r)) {
    return false;
  }
  while (accept_word(r, "func")) {
    if (!func(r)) {
      return false;
    }
  }
  blanks(r);
  return r->p == r->end || fail(r, "expected 'func' or the end");
}

Module *ir_read(const char *text, size_t n, const char *path, Error *err) {
  Error first = {0};
  Reader r = {.p = text, .end = text + n, .path = path, .line = 1, .m = ir_module_new(), .err = &first};
  if (module(&r) && ir_verify(r.m, &first)) {
    return r.m;
  }
  ir_module_free(r.m);
  error_set(err, first.cls, "%s", first.msg);
  return NULL;
}
