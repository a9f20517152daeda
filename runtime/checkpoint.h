/* checkpoint.h: folders of checkpoints by step. Internal to runtime/. */
#ifndef DLC_CHECKPOINT_H
#define DLC_CHECKPOINT_H

#include "runtime/runtime.h"

/* Steps with a folder in the run, newest first. */
uint32_t checkpoint_list(const char *run, Arena *a, int64_t **steps);
char *checkpoint_folder(Arena *a, const char *run, int64_t step); /* "RUN/step-000500" */
/* The step of "…/step-000500", -1 for another name. */
int64_t checkpoint_step(const char *path);

#endif
