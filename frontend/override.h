/* override.h: overrides as edits of the program's text. Internal to frontend/. */
#ifndef DLC_OVERRIDE_H
#define DLC_OVERRIDE_H

#include "frontend/ast.h"

/* The plan of that name (NULL: the last), and how many there are. */
const AstItem *override_plan(const AstFile *f, const char *name, uint32_t *n_plans);
/* The layout of that name (NULL: the first). */
const AstPlanItem *override_layout(const AstItem *plan, const char *name);
/* The text with one "PATH=VALUE" folded in; NULL with err set (ERR_USAGE) for an unknown path. */
const char *override_apply(Arena *arena, const char *path, const char *text, const char *plan,
                           const char *layout, const char *set, Error *err);
/* The text with the plan's own `set optimizer.lr = 1e-3` folded in. */
const char *override_inline(Arena *arena, const char *path, const char *text, const char *plan,
                            const char *layout, Error *err);
/* The text for plan.dl: other plans and layouts dropped, paths of files resolved against `folder`, env()
 * read. */
const char *override_folded(Arena *arena, const char *folder, const char *text, const AstFile *file,
                            const AstItem *plan, const AstPlanItem *layout);
/* A text, or env("NAME") or env("NAME", "default") as text; NULL: neither, or the variable is not set. */
const char *override_value_text(const AstExpr *x);

#endif
