/* Functions of a library by their names. */
#ifndef SYMBOL_H
#define SYMBOL_H

typedef void (*any_function)(void);

/* ISO C has no conversion between object and function pointers; POSIX says that the bytes are the same. */
any_function symbol(void *library, const char *name);

#endif
