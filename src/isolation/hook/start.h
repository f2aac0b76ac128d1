/* Start-up; see hook/start.c. */
#pragma once

/* Tells lower folders what higher ones do for them. Any thread, any number of times. */
void register_callbacks(void);
