// Package grounding extracts data from documents so that callers can trust it. A model returns quotes. The package
// finds each quote in the document and returns the document's own text. The package is pure: the same input gives the
// same output, without a database, a network or a clock.
//
// A document passes through these steps. [Normalise] returns the text to read and maps it back to the document. [Cut]
// splits the text into shards. [CompiledProgram.Prompt] returns the prompt for a shard. [CompiledProgram.Read] reads
// the answer and finds its quotes. [Merge] combines the results of all shards. [Request.Sum] returns the hash of a
// request, so that the same question is asked only once.
package grounding
