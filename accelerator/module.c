#include "accelerator.h"

#define DEFINE_NAME(name) PyObject *name_##name;
NAMES(DEFINE_NAME)
#undef DEFINE_NAME

static PyObject *all_bound; /* a dict: what Python code has bound, by name */

PyObject *bound(const char *name)
{
    PyObject *found = PyMapping_GetItemString(all_bound, name);
    if (found == NULL) {
        PyErr_Format(PyExc_RuntimeError, "nothing is bound to %s", name);
        return NULL;
    }
    Py_DECREF(found); /* The dict keeps it. */
    return found;
}

char *buffer_grow(Buffer *buffer, size_t more)
{
    if (more > buffer->room - buffer->size) {
        size_t room = buffer->room ? buffer->room : 4096;
        while (more > room - buffer->size) {
            if (room > (size_t)PY_SSIZE_T_MAX / 2) {
                PyErr_NoMemory();
                return NULL;
            }
            room *= 2;
        }
        char *data = PyMem_Realloc(buffer->data, room);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->data = data;
        buffer->room = room;
    }
    char *end = buffer->data + buffer->size;
    buffer->size += more;
    return end;
}

void buffer_free(Buffer *buffer)
{
    PyMem_Free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

static int start(PyObject *module)
{
    int64_t interpreter = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (interpreter != 0) {
        if (interpreter > 0) {
            PyErr_SetString(PyExc_ImportError, "it loads in the main interpreter only");
        }
        return -1;
    }
#define INTERN_NAME(name)                                                                          \
    if (name_##name == NULL && (name_##name = PyUnicode_InternFromString(#name)) == NULL) {        \
        return -1;                                                                                 \
    }
    NAMES(INTERN_NAME)
#undef INTERN_NAME
    if (all_bound == NULL && (all_bound = PyDict_New()) == NULL) {
        return -1;
    }
    if (PyModule_AddObjectRef(module, "bound", all_bound) < 0 ||
        PyModule_AddStringConstant(module, "sources", BATCHKEEPER_SOURCES) < 0) {
        return -1;
    }
    if (entries_start(module) < 0 || PyModule_AddFunctions(module, entries_methods) < 0 ||
        PyModule_AddFunctions(module, etcd_methods) < 0 ||
        PyModule_AddFunctions(module, rocksdb_methods) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, zookeeper_methods);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, start},
    {0, NULL},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_accelerator",
    .m_doc = "Compiled twins of hot functions. See ops/acceleration.py.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__accelerator(void)
{
    return PyModuleDef_Init(&definition);
}
