/* fl_cpu_image: the tables fl_image_ops for CPUs.
 *
 * Floor 2. fl_cpu_image_plain.c is the reference and serves any machine; each further table is for
 * one instruction set and gives the same bits. Any thread; nothing here blocks. */
#ifndef FL_CPU_IMAGE_H
#define FL_CPU_IMAGE_H

#include "fl_image_ops.h"

extern const fl_image_ops fl_cpu_image_plain;
#if defined(__x86_64__)
extern const fl_image_ops fl_cpu_image_avx2;
extern const fl_image_ops fl_cpu_image_avx512;
#elif defined(__aarch64__)
extern const fl_image_ops fl_cpu_image_neon;
#endif

/* Returns the table for the level of this machine (fl_cpu_level_find); static. */
const fl_image_ops *fl_cpu_image_ops_find(void);

#endif
