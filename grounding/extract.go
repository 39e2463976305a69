// Package grounding reads data out of documents so that it can be trusted: a model quotes, and this package finds each
// quote in the document and returns the document's own slice. It is pure: the same input gives the same output, without
// a database, a network or a clock.
//
// A document goes this way: [Normalise] makes the text that is read, and knows the way back. [Cut] divides it into
// shards. [Compiled.Prompt] asks a model about a shard. [Compiled.Read] reads the answer and finds its quotes. [Merge]
// makes one result of all shards. [Request.Sum] names what a shard asks, so that the same question is asked once.
package grounding
