#include "symbol.h"

#include <dlfcn.h>
#include <string.h>

any_function symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    any_function function = NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}
