/* cache.c: one file per key: header, then the bytes. Written under a temporary name and renamed, so readers
 * see whole files; the header holds key, length and hash, so a damaged file is found out. */
#include "codegen/cache.h"
#include "codegen/codegen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "dlcobj1\n"

typedef struct {
  char magic[8];
  char key[64], hash[64]; /* hex */
  uint64_t n;
} Header;

static Header header_for(const char *key, const void *bytes, size_t n) {
  Header h;
  char hash[65];
  sha256_hex(bytes, n, hash);
  memcpy(h.magic, MAGIC, sizeof h.magic);
  memcpy(h.key, key, sizeof h.key);
  memcpy(h.hash, hash, sizeof h.hash);
  h.n = n;
  return h;
}

char *cache_default_dir(void) {
  Str s = {0};
  const char *own = getenv("DLC_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (own)
    str_printf(&s, "%s", own);
  else if (xdg && *xdg)
    str_printf(&s, "%s/dlc", xdg);
  else if (home && *home)
    str_printf(&s, "%s/.cache/dlc", home);
  if (!s.len)
    str_free(&s);
  return s.s;
}

static bool key_ok(const char *key) {
  return strlen(key) == 64 && strspn(key, "0123456789abcdef") == 64;
}

static bool read_all(int fd, void *p, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t r = read(fd, (char *)p + done, n - done);
    if (r < 0 && errno == EINTR)
      continue;
    if (r <= 0)
      return false;
    done += (size_t)r;
  }
  return true;
}

static bool write_all(int fd, const void *p, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t r = write(fd, (const char *)p + done, n - done);
    if (r < 0 && errno == EINTR)
      continue;
    if (r <= 0)
      return false;
    done += (size_t)r;
  }
  return true;
}

static bool read_entry(int fd, const char *key, Arena *arena, const void **bytes, size_t *n) {
  Header h;
  struct stat st;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof h || !read_all(fd, &h, sizeof h))
    return false;
  size_t body = (size_t)st.st_size - sizeof h;
  if (h.n != body)
    return false;
  void *p = arena_alloc(arena, body);
  if (!read_all(fd, p, body))
    return false;
  Header want = header_for(key, p, body);
  if (memcmp(&h, &want, sizeof h))
    return false;
  *bytes = p;
  *n = body;
  return true;
}

bool cache_get(const char *dir, const char *key, Arena *arena, const void **bytes, size_t *n) {
  char path[4096];
  if (!key_ok(key) || (size_t)snprintf(path, sizeof path, "%s/%s.o", dir, key) >= sizeof path)
    return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  bool ok = read_entry(fd, key, arena, bytes, n);
  close(fd);
  return ok;
}

/* mkdir -p. */
static void make_dirs(const char *dir) {
  char path[4096];
  if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
    return;
  for (char *p = path + 1; *p; p++)
    if (*p == '/') {
      *p = 0;
      mkdir(path, 0777);
      *p = '/';
    }
  mkdir(path, 0777);
}

void cache_put(const char *dir, const char *key, const void *bytes, size_t n) {
  char path[4096], tmp[4096];
  if (!key_ok(key) || (size_t)snprintf(path, sizeof path, "%s/%s.o", dir, key) >= sizeof path ||
      (size_t)snprintf(tmp, sizeof tmp, "%s/.%s.XXXXXX", dir, key) >= sizeof tmp)
    return;
  int fd = mkstemp(tmp);
  if (fd < 0 && errno == ENOENT) {
    make_dirs(dir);
    snprintf(tmp, sizeof tmp, "%s/.%s.XXXXXX", dir, key);
    fd = mkstemp(tmp);
  }
  if (fd < 0)
    return;
  Header h = header_for(key, bytes, n);
  bool ok = write_all(fd, &h, sizeof h) && write_all(fd, bytes, n);
  ok = close(fd) == 0 && ok;
  if (!ok || rename(tmp, path))
    unlink(tmp);
}
