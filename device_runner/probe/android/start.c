/* What the NDK's crtbegin_dynamic.o and crtend_android.o do for a program, in our own words: the entry point, the
 * call of bionic's __libc_init, the destructors at exit, and the note that says which API level it was made for. */
#include <stdint.h>

typedef void (*function)(void);

struct structors {
    function *preinit, *init, *fini;
};

int main(int count, char **arguments, char **environment);
_Noreturn void __libc_init(void *stack, function at_exit, int (*program)(int, char **, char **),
                           const struct structors *structors);
int __cxa_atexit(void (*work)(void *), void *argument, void *handle);
int atexit(function work) __attribute__((visibility("hidden")));
_Noreturn void probe_start(void *stack) __attribute__((visibility("hidden"), used));

extern function __fini_array_start[] __attribute__((weak, visibility("hidden")));
extern function __fini_array_end[] __attribute__((weak, visibility("hidden")));

void *__dso_handle __attribute__((visibility("hidden"))) = &__dso_handle;

/* libc.so has no atexit on 64 bits: it belongs to each object, so that dlclose can run its own. */
int atexit(function work) { return __cxa_atexit((void (*)(void *))work, 0, &__dso_handle); }

static void run_destructors(void) {
    for (function *at = __fini_array_end; at != __fini_array_start;) (*--at)();
}

/* bionic reads a list from -1 to 0. The linker itself runs the constructors. */
static function fini[] = {(function)-1, run_destructors, 0};

void probe_start(void *stack) {
    const struct structors structors = {0, 0, fini};
    __libc_init(stack, 0, main, &structors);
}

#if defined(__aarch64__)
__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n"
        "  hint #36\n" /* a landing pad for indirect branches; nothing on processors without */
        "  mov x29, #0\n  mov x30, #0\n  mov x0, sp\n  b probe_start\n");
#elif defined(__x86_64__)
__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n"
        "  xorl %ebp, %ebp\n  movq %rsp, %rdi\n  andq $-16, %rsp\n  call probe_start\n");
#endif

#ifndef PROBE_API_LEVEL
#error "give the API level: -DPROBE_API_LEVEL=27"
#endif

static const struct {
    int32_t name_bytes, description_bytes, type;
    char name[8];
    int32_t api_level;
} note __attribute__((section(".note.android.ident"), used, aligned(4))) = {8, 4, 1, "Android", PROBE_API_LEVEL};
