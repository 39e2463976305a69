// Package llmoracle tests GEM against third-party servers that are too large to be dependencies of GEM itself. It is a
// separate module and never part of the binary.
//
// Ollama's own server code converts requests of the OpenAI and the Anthropic dialect into its own form, and its answers
// back into events. Both run here without a model: a function replaces it. This tests the wire format and not the
// inference.
package llmoracle

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/middleware"
)

// Model replaces a model. It calls say for each piece of its answer. Its error is reported as Ollama does. If nothing
// was said before, the error is a status: that of an api.StatusError, otherwise 500. Later it is part of the stream.
type Model func(r *api.ChatRequest, say func(api.ChatResponse)) error

// Answers returns a model that gives the same answer to every request.
func Answers(pieces ...api.ChatResponse) Model {
	return func(_ *api.ChatRequest, say func(api.ChatResponse)) error {
		for _, piece := range pieces {
			say(piece)
		}
		return nil
	}
}

// Ollama is a server with Ollama's code.
type Ollama struct {
	// URL has no path. The Anthropic dialect is below it, and the OpenAI dialect below /v1.
	URL string

	mu       sync.Mutex
	requests []api.ChatRequest
}

// Requests returns the requests so far, in Ollama's own form.
func (o *Ollama) Requests() []api.ChatRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]api.ChatRequest(nil), o.requests...)
}

// StartOllama starts a server that stops at the end of the test.
func StartOllama(t testing.TB, m Model) *Ollama {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	o := &Ollama{}
	chat := func(c *gin.Context) {
		var r api.ChatRequest
		if err := c.ShouldBindJSON(&r); err != nil {
			c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": err.Error()})
			return
		}
		o.mu.Lock()
		o.requests = append(o.requests, r)
		o.mu.Unlock()
		c.Header("Content-Type", "application/x-ndjson")
		err := m(&r, func(piece api.ChatResponse) {
			piece.Model = r.Model
			line, err := json.Marshal(piece)
			if err != nil {
				panic(err)
			}
			if _, err := c.Writer.Write(append(line, '\n')); err == nil {
				c.Writer.Flush()
			}
		})
		var refused api.StatusError
		switch {
		case err == nil:
		case c.Writer.Written():
			_ = json.NewEncoder(c.Writer).Encode(gin.H{"error": err.Error()})
		case errors.As(err, &refused):
			c.JSON(refused.StatusCode, gin.H{"error": refused.ErrorMessage})
		default:
			c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		}
	}
	router := gin.New()
	router.POST("/v1/chat/completions", middleware.ChatMiddleware(), chat)
	router.POST("/v1/messages", middleware.AnthropicMessagesMiddleware(), chat)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	o.URL = server.URL
	return o
}
