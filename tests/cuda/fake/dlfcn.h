/* dlfcn.h: the system's, and a driver library that is there once the fake runtime has been called,
 * as with CUDA's own runtime. See fake_device.c. */
#ifndef FAKE_DLFCN_H
#define FAKE_DLFCN_H

#include_next <dlfcn.h>

void *fake_dlopen(const char *name, int flags);
void *fake_dlsym(void *library, const char *name);
int fake_dlclose(void *library);

#ifndef FAKE_DEVICE_C
#define dlopen fake_dlopen
#define dlsym fake_dlsym
#define dlclose fake_dlclose
#endif

#endif
