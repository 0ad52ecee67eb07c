#include "accelerator.h"

PyMethodDef etcd_methods[] = {
    {NULL, NULL, 0, NULL},
};
