/* What the functions for ZooKeeper share. */

#ifndef BATCHKEEPER_ZOOKEEPER_H
#define BATCHKEEPER_ZOOKEEPER_H

#include "accelerator.h"

/* As in jute.py. */
enum {
    ERROR = -1,
    EPHEMERAL = -2,
    SEQUENTIAL = -3,
    CREATE = 1,
    DELETE = 2,
    EXISTS = 3,
    GET_DATA = 4,
    SET_DATA = 5,
    GET_CHILDREN = 8,
    CHECK = 13,
};
enum { HEADER_SIZE = 9, STAT_SIZE = 68, LENGTH_SIZE = 4, UPDATE_SIZE = HEADER_SIZE + STAT_SIZE };

/* ABSENT, ANY_VERSION, and the constants of groups.py, packets.py and gets.py. */
enum { ABSENT = -1, ANY_VERSION = -1, CREATE_OVERHEAD = 17, READ_OVERHEAD = 14 };
enum { ANSWER_BYTES = 1 << 20, ENTRY_BYTES = 81, SMALL = 1024, PACKET_READS = 256 };

/* What became of one operation. */
typedef enum { FAILED = -1, STOP, DONE, DEFER } Outcome;

/* Pass a call to the Python twin. An error that has occurred is dropped, because the twin raises its
   own; but it is returned if there is no memory. */
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

/* Read the opcode and the place of a step. */
static inline bool read_step(PyObject *step, long long *opcode, long long *place)
{
    return number_at(step, 0, opcode) && number_at(step, 1, place) && *place >= 0;
}

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

/* Write the header of an operation in a multi, and the length of its path; return the end. */
static inline char *put_header(char *at, int32_t opcode, Py_ssize_t path_bytes)
{
    put32(at, (uint32_t)opcode);
    at[4] = 0;
    put32(at + 5, (uint32_t)-1);
    put32(at + 9, (uint32_t)path_bytes);
    return at + 13;
}

/* Makes named tuples. Their items are set in a scratch tuple, which keeps those that do not change. */
typedef struct {
    newfunc make;
    PyTypeObject *type;
    PyObject *items;
    PyObject *arguments;
} Maker;

/* Open a maker of instances of a bound class. Close it in any case, if it was zero before. */
bool maker_open(Maker *maker, const char *name, Py_ssize_t count);
void maker_close(Maker *maker);
/* Set an item. Steals the reference, which may be NULL with an error set. */
bool maker_set(Maker *maker, Py_ssize_t i, PyObject *value);
PyObject *maker_make(Maker *maker);
/* Make a Stat for a path, to which it steals the reference. */
PyObject *make_stat(Maker *stat, PyObject *path);
/* Take a tuple from the garbage collector, which would look at it again and again. Nothing in it may
   refer to other objects, so it cannot be part of a cycle. Python does the same with plain tuples. */
PyObject *untrack(PyObject *tuple);

/* The known nodes. */
typedef struct {
    PyObject *young;
    PyObject *old;
} Generations;

bool generations_read(Generations *known, PyObject *generations);
/* nodes.size_of: find the size of the value at a path, a borrowed reference, NULL if it is not known. */
bool find_size(const Generations *known, PyObject *path, PyObject **size);

/* Attributes. What `get_attribute` has found must be released, even if it is of another type. */
bool get_attribute(PyObject *owner, PyObject *name, PyTypeObject *type, PyObject **found);
bool get_number(PyObject *owner, PyObject *name, Py_ssize_t *number);
bool set_number(PyObject *owner, PyObject *name, Py_ssize_t number);

/* The compiled functions, in the files named after the modules of their twins. */
#define FUNCTIONS(X)                                                                               \
    X(add_puts) X(add_reads) X(answer_steps) X(multi_read) X(note_steps) X(parse_multi)            \
    X(parse_multi_read)
#define DECLARE_FUNCTION(name) PyObject *name(PyObject *module, PyObject *arguments);
FUNCTIONS(DECLARE_FUNCTION)
#undef DECLARE_FUNCTION

#endif
