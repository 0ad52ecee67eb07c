/* What the parts of the accelerator share. See ops/acceleration.py for what the accelerator is.

   The stable ABI of Python 3.11: one build serves all later versions. All state is static, so the
   module loads in the main interpreter only, and its functions run with the GIL held.

   A compiled function handles the frequent inputs. It passes all others to its Python twin, so both
   give the same results and errors. */

#ifndef BATCHKEEPER_ACCELERATOR_H
#define BATCHKEEPER_ACCELERATOR_H

#ifndef BATCHKEEPER_FULL_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Interned strings: `name_path` is "path". */
#define NAMES(X)                                                                                   \
    X(answer_bytes) X(created) X(delete) X(deleted) X(encoded) X(ephemeral) X(expected_version)    \
    X(fleeting) X(get) X(kind) X(made) X(op_bytes) X(operations) X(options) X(parts) X(path)       \
    X(paths) X(popleft) X(put) X(reads) X(requests) X(seen) X(sent_bytes) X(sequential) X(session) \
    X(size) X(steps) X(value) X(writes)
#define DECLARE_NAME(name) extern PyObject *name_##name;
NAMES(DECLARE_NAME)
#undef DECLARE_NAME

/* Return an object that Python code has bound to a name: a class, or the Python twin of a function.
   Borrowed; NULL with a RuntimeError if nothing is bound. */
PyObject *bound(const char *name);

/* Return a new instance of a named tuple with these items, or NULL with an error. Steals the
   reference to `items`, which may be NULL with an error set. */
PyObject *named_tuple(PyObject *type, PyObject *items);

/* Bytes that grow. Zero-initialised, it is empty; `buffer_free` it in the end. */
typedef struct {
    char *data;
    size_t size;
    size_t room;
} Buffer;

/* Return a pointer to `more` bytes at the end, for the caller to fill, or NULL with a MemoryError.
   They count as written. */
char *buffer_grow(Buffer *buffer, size_t more);
void buffer_free(Buffer *buffer);

/* The functions of each part; terminated by an empty one. */
extern PyMethodDef entries_methods[];
extern PyMethodDef etcd_methods[];
extern PyMethodDef zookeeper_methods[];

/* Prepare a part when the module is loaded. */
int entries_start(PyObject *module);

#endif
