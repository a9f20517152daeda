/* files.h: writing files so that a crash or a full disk leaves the old one. Internal to runtime/. */
#ifndef DLC_FILES_H
#define DLC_FILES_H

#include "runtime/base.h"

/* A file being written at path.part; sums what goes through. */
typedef struct {
  const char *path;
  char *part;
  int fd;
  Sha256 sum;
  unsigned char *buffer;
  size_t held;
  bool failed;
  Error *err;
} FileOut;

/* After a failure further calls do nothing; err holds the first. */
bool fileout_open(FileOut *f, const char *path, Error *err);
void fileout_write(FileOut *f, const void *p, size_t n);
/* Flushes, syncs, closes, renames. On any failure removes the part and returns false. */
bool fileout_close(FileOut *f, char sha256[65]);

/* The folder's entries reach the disk. Errors are left out where a file system cannot sync folders. */
void sync_folder(const char *path);
bool remove_tree(const char *path); /* false: something is left */
/* sha256 of a file's bytes. */
bool file_sha256(const char *path, char out[65], Error *err);

#endif
