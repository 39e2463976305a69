package worker

// Point is a place in a call's life, just before or just after something is committed. The tests of what survives a
// worker's death end the process there; see Options.At.
type Point string

// The points, in the order in which a call passes them.
const (
	BeforeClaim    Point = "before claim"
	AfterClaim     Point = "after claim"
	BeforeKey      Point = "before key"
	AfterKey       Point = "after key"
	BeforeHandler  Point = "before handler"
	AfterHandler   Point = "after handler"
	BeforeCommit   Point = "before commit" // of a handler's transaction with its receipt
	AfterCommit    Point = "after commit"
	BeforeReceipt  Point = "before receipt" // in a transaction of its own
	AfterReceipt   Point = "after receipt"
	BeforePutBack  Point = "before putting back" // for another attempt
	AfterPutBack   Point = "after putting back"
	BeforeHandOver Point = "before handing over" // to another worker, when this one stops
	AfterHandOver  Point = "after handing over"
)

// at passes a point.
func (w *Worker) at(p Point) {
	if w.At != nil {
		w.At(p)
	}
}
