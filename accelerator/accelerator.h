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
    X(_entry) X(allowance) X(answer_bytes) X(checked) X(created) X(delete) X(deleted) X(encoded)   \
    X(exists) X(expected_version) X(fleeting) X(get) X(going) X(kind) X(light) X(made)             \
    X(monotonic) X(next_deadline) X(op_bytes) X(operations) X(ops) X(options) X(parts) X(path)     \
    X(paths) X(popleft) X(put) X(reads) X(requests) X(seen) X(sent_bytes) X(session) X(size)       \
    X(value) X(waiting) X(writes) X(writing)
#define DECLARE_NAME(name) extern PyObject *name_##name;
NAMES(DECLARE_NAME)
#undef DECLARE_NAME

/* Return an object that Python code has bound to a name: a class, or the Python twin of a function.
   Borrowed; NULL with a RuntimeError if nothing is bound. */
PyObject *bound(const char *name);

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

/* What became of one operation. */
typedef enum { FAILED = -1, STOP, DONE, DEFER } Outcome;

/* Pass a call to the Python twin. An error that has occurred is dropped, because the twin raises its
   own; but not KeyboardInterrupt and the like, nor that there is no memory. */
PyObject *defer(const char *name, PyObject *arguments);

/* Sequences: only lists and tuples are read here. */

static inline Py_ssize_t length_of(PyObject *sequence)
{
    return PyList_Check(sequence)    ? PyList_Size(sequence)
           : PyTuple_Check(sequence) ? PyTuple_Size(sequence)
                                     : -1;
}

/* Return an item, a new reference, or NULL. */
static inline PyObject *item(PyObject *sequence, Py_ssize_t i)
{
    PyObject *found = NULL;
    if (PyList_Check(sequence)) {
        found = PyList_GetItem(sequence, i);
    } else if (PyTuple_Check(sequence)) {
        found = PyTuple_GetItem(sequence, i);
    } else {
        PyErr_SetString(PyExc_TypeError, "neither a list nor a tuple");
    }
    Py_XINCREF(found);
    return found;
}

/* Read an item of a tuple as a number. */
static inline bool number_at(PyObject *tuple, Py_ssize_t i, long long *number)
{
    PyObject *found = PyTuple_Check(tuple) ? PyTuple_GetItem(tuple, i) : NULL;
    if (found == NULL || !PyLong_Check(found)) {
        return false;
    }
    *number = PyLong_AsLongLong(found);
    return *number != -1 || !PyErr_Occurred();
}

/* Attributes. What `get_attribute` has found must be released, even if it is of another type. */
bool get_attribute(PyObject *owner, PyObject *name, PyTypeObject *type, PyObject **found);
/* The same of a request, by one of its public names; from entries at once. */
PyObject *request_attribute(PyObject *request, PyObject *name);
bool get_number(PyObject *owner, PyObject *name, Py_ssize_t *number);
bool set_number(PyObject *owner, PyObject *name, Py_ssize_t number);

/* Big-endian numbers. */

static inline void put32(char *at, uint32_t number)
{
    at[0] = (char)(number >> 24);
    at[1] = (char)(number >> 16);
    at[2] = (char)(number >> 8);
    at[3] = (char)number;
}

static inline uint32_t unsigned32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int32_t get32(const unsigned char *at)
{
    return (int32_t)unsigned32(at);
}

static inline int64_t get64(const unsigned char *at)
{
    return (int64_t)((uint64_t)unsigned32(at) << 32 | unsigned32(at + 4));
}

static inline PyObject *int32_at(const unsigned char *at)
{
    return PyLong_FromLong(get32(at));
}

static inline PyObject *int64_at(const unsigned char *at)
{
    return PyLong_FromLongLong(get64(at));
}

/* Makes named tuples. Their items are set in a scratch tuple, which keeps those that do not change. */
typedef struct {
    newfunc make;
    PyTypeObject *type;
    PyObject *items;
    PyObject *arguments;
} Maker;

/* Open a maker of instances of a class, which may be NULL with an error set. Close it in any case, if
   it was zero before. All items are None until they are set. */
bool maker_open(Maker *maker, PyObject *type, Py_ssize_t count);
void maker_close(Maker *maker);
/* Set an item. Steals the reference, which may be NULL with an error set. */
bool maker_set(Maker *maker, Py_ssize_t i, PyObject *value);
PyObject *maker_make(Maker *maker);
/* Make a Stat for a path, to which it steals the reference. */
PyObject *make_stat(Maker *stat, PyObject *path);
/* Take a tuple from the garbage collector, which would look at it again and again. Nothing in it may
   refer to other objects, so it cannot be part of a cycle. Python does the same with plain tuples. */
PyObject *untrack(PyObject *tuple);

/* The functions of each part; terminated by an empty one. */
extern PyMethodDef entries_methods[];
extern PyMethodDef etcd_methods[];
extern PyMethodDef rocksdb_methods[];
extern PyMethodDef zookeeper_methods[];

/* Prepare a part when the module is loaded. */
int entries_start(PyObject *module);

#endif
