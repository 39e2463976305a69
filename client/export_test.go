package client

// Waits returns the number of calls with a wait.
func (w *Waiter) Waits() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waits)
}

// Listens reports whether notifications arrive.
func (w *Waiter) Listens() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listening
}
