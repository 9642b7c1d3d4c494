/* Functions of a library by their names. */
#ifndef SYMBOL_H
#define SYMBOL_H

#include <dlfcn.h>
#include <string.h>

typedef void (*any_function)(void);

/* ISO C has no conversion between object and function pointers; POSIX says that the bytes are the same. */
static any_function symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    any_function function = NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}

#endif
