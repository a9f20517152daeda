/* text.h: UTF-8. Internal to runtime/. */
#ifndef DLC_TEXT_H
#define DLC_TEXT_H

#include "runtime/runtime.h"

/* Bytes of the first character of text and its code point; 0 when it is no UTF-8. */
int utf8_next(const char *text, size_t n, uint32_t *code);
void utf8_put(Str *out, uint32_t code);

#endif
