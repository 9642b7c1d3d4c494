#ifndef PROBE_PTHREAD_H
#define PROBE_PTHREAD_H
#include <stdint.h>
typedef struct {
    int32_t opaque[10]; /* 40 bytes on 64-bit bionic; all zero is an unlocked mutex */
} pthread_mutex_t;
#define PTHREAD_MUTEX_INITIALIZER {{0}}
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
typedef long pthread_t;
typedef struct pthread_attr pthread_attr_t; /* never made here: NULL is the default */
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*work)(void *), void *context);
int pthread_join(pthread_t thread, void **result);
#endif
