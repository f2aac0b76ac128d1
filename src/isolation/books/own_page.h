/* The page of this slice on a card, among those of its neighbours. */
#pragma once

#include "books/activity.h"

/* Where the slices of a card have their pages; returns the length, as snprintf does. */
int activity_directory(int card, char *path, size_t bytes);

/* The agent's file, else the one in the region. Any thread. */
struct activity *activity_own_page(int card);
