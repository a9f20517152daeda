/* folder.h: a folder of its own for a test file. */
#ifndef DLC_TEST_FOLDER_H
#define DLC_TEST_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char test_folder[64] = "/tmp/dlc-test-XXXXXX";

static inline int make_test_folder(void **state) {
  (void)state;
  return !mkdtemp(test_folder);
}

static inline int drop_test_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", test_folder);
  return system(command);
}

/* Path in the folder; good until eight more calls. */
static inline const char *in_folder(const char *name) {
  static char path[8][320];
  static int next;
  next = (next + 1) % 8;
  snprintf(path[next], sizeof path[next], "%s/%s", test_folder, name);
  return path[next];
}

static inline const char *put_file(const char *name, const void *bytes, size_t n) {
  const char *path = in_folder(name);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
    abort();
  }
  return path;
}

#endif
