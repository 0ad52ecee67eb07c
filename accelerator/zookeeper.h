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

/* ABSENT, ANY_VERSION, and the constants of groups.py and packets.py. */
enum { ABSENT = -1, ANY_VERSION = -1, CREATE_OVERHEAD = 17, READ_OVERHEAD = 14 };
enum { ANSWER_BYTES = 1 << 20, ENTRY_BYTES = 81, SMALL = 1024, PACKET_READS = 256 };

/* Read the opcode and the place of an op. */
static inline bool read_op(PyObject *op, long long *opcode, long long *place)
{
    return number_at(op, 0, opcode) && number_at(op, 1, place) && *place >= 0;
}

/* Say whether a kind has a name; -1 with an error. */
static inline int is_kind(PyObject *kind, PyObject *name)
{
    return kind == name ? 1 : PyObject_RichCompareBool(kind, name, Py_EQ);
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

/* The known nodes. */
typedef struct {
    PyObject *young;
    PyObject *old;
} Generations;

bool generations_read(Generations *known, PyObject *generations);
/* nodes.size_of: find the size of the value at a path, a borrowed reference, NULL if it is not known. */
bool find_size(const Generations *known, PyObject *path, PyObject **size);

/* The compiled functions, in the files named after the modules of their twins. */
#define FUNCTIONS(X)                                                                               \
    X(add_puts) X(add_reads) X(answer_ops) X(multi_read) X(note_ops) X(parse_multi)                \
    X(parse_multi_read) X(place_values)
#define DECLARE_FUNCTION(name) PyObject *name(PyObject *module, PyObject *arguments);
FUNCTIONS(DECLARE_FUNCTION)
#undef DECLARE_FUNCTION

#endif
