/* files.c: whole files: read, written beside and renamed, summed, removed. */
#include "runtime/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/runtime.h"

enum { PIECE = 1 << 18 };

static void fail(FileOut *f, const char *what) {
  if (!f->failed) {
    error_set(f->err, ERR_RUN, "cannot %s %s: %s", what, f->path, strerror(errno));
  }
  f->failed = true;
}

bool fileout_open(FileOut *f, const char *path, Error *err) {
  *f = (FileOut){.path = path, .fd = -1, .err = err};
  sha256_start(&f->sum);
  f->part = malloc(strlen(path) + 6);
  f->buffer = malloc(PIECE);
  if (!f->part || !f->buffer) {
    errno = ENOMEM;
    fail(f, "write");
    return false;
  }
  sprintf(f->part, "%s.part", path);
  f->fd = open(f->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (f->fd < 0) {
    fail(f, "write");
  }
  return !f->failed;
}

static void flush(FileOut *f) {
  for (size_t done = 0; done < f->held && !f->failed;) {
    ssize_t n = write(f->fd, f->buffer + done, f->held - done);
    if (n > 0) {
      done += (size_t)n;
    } else if (n == 0 || errno != EINTR) {
      fail(f, "write");
    }
  }
  f->held = 0;
}

void fileout_write(FileOut *f, const void *p, size_t n) {
  if (f->failed) {
    return;
  }
  sha256_add(&f->sum, p, n);
  for (size_t done = 0; done < n && !f->failed;) {
    size_t take = n - done < PIECE - f->held ? n - done : PIECE - f->held;
    memcpy(f->buffer + f->held, (const char *)p + done, take);
    f->held += take;
    done += take;
    if (f->held == PIECE) {
      flush(f);
    }
  }
}

bool fileout_close(FileOut *f, char sha256[65]) {
  if (!f->failed) {
    flush(f);
  }
  if (!f->failed && fsync(f->fd)) {
    fail(f, "write");
  }
  if (f->fd >= 0 && close(f->fd)) {
    fail(f, "write");
  }
  if (!f->failed && rename(f->part, f->path)) {
    fail(f, "write");
  }
  if (f->failed && f->fd >= 0) {
    unlink(f->part);
  }
  if (!f->failed && sha256) {
    sha256_end(&f->sum, sha256);
  }
  free(f->part);
  free(f->buffer);
  return !f->failed;
}

void sync_folder(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
}

bool remove_tree(const char *path) {
  DIR *dir = opendir(path);
  if (!dir) {
    return errno == ENOENT || !unlink(path);
  }
  bool ok = true;
  for (struct dirent *e; (e = readdir(dir));) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) {
      continue;
    }
    Str inner = {0};
    str_printf(&inner, "%s/%s", path, e->d_name);
    struct stat st;
    bool folder = !lstat(inner.s, &st) && S_ISDIR(st.st_mode);
    ok = (folder ? remove_tree(inner.s) : !unlink(inner.s)) && ok;
    str_free(&inner);
  }
  closedir(dir);
  return !rmdir(path) && ok;
}

bool file_sha256(const char *path, char out[65], Error *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  char *piece = malloc(PIECE);
  Sha256 sum;
  sha256_start(&sum);
  ssize_t n = -1;
  while (fd >= 0 && piece) {
    n = read(fd, piece, PIECE);
    if (n > 0) {
      sha256_add(&sum, piece, (size_t)n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  if (n < 0) {
    error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
  }
  free(piece);
  if (fd >= 0) {
    close(fd);
  }
  sha256_end(&sum, out);
  return n == 0;
}

/* ---- whole files ---- */

bool file_write(const char *path, const char *text, size_t n, Error *err) {
  FileOut f;
  if (fileout_open(&f, path, err)) {
    fileout_write(&f, text, n);
  }
  return fileout_close(&f, NULL);
}

bool file_exists(const char *path) {
  struct stat st;
  return !stat(path, &st);
}

bool file_read(const char *path, Arena *a, char **text, size_t *n, Error *err) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st)) {
    error_set(err, ERR_INPUT, "cannot open %s: %s", path, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    error_set(err, ERR_INPUT, "%s is not a file", path);
  } else {
    size_t size = (size_t)st.st_size, done = 0;
    char *to = arena_alloc(a, size + 1);
    ssize_t got = 1;
    while (done < size && got) {
      got = read(fd, to + done, size - done);
      if (got < 0 && errno != EINTR) {
        break;
      }
      done += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    *text = to;
    *n = done;
    return got >= 0 || error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
  }
  if (fd >= 0) {
    close(fd);
  }
  return false;
}
