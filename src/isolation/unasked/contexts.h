/* Contexts, made and ended; see unasked/contexts.c. */
#pragma once

/* In a forked child: none is ours. */
void contexts_after_fork(void);
