#include <openssl/evp.h>

#include <array>
#include <stdexcept>

#include "zero/data.h"

namespace zeropp::zero {
namespace {

EVP_MD_CTX* context(void* ctx) { return static_cast<EVP_MD_CTX*>(ctx); }

void require(int ok, const char* call) {
  if (ok != 1) throw std::runtime_error(std::string("OpenSSL: ") + call + " failed");
}

}  // namespace

Sha256::Sha256() : ctx_(EVP_MD_CTX_new()) {
  if (ctx_ == nullptr) throw std::bad_alloc();
  if (EVP_DigestInit_ex(context(ctx_), EVP_sha256(), nullptr) != 1) {
    EVP_MD_CTX_free(context(ctx_));
    throw std::runtime_error("OpenSSL: EVP_DigestInit_ex(SHA-256) failed");
  }
}

Sha256::~Sha256() { EVP_MD_CTX_free(context(ctx_)); }

void Sha256::update(const void* data, std::size_t bytes) {
  require(EVP_DigestUpdate(context(ctx_), data, bytes), "EVP_DigestUpdate");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context(ctx_), digest.data(), &size), "EVP_DigestFinal_ex");
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(std::size_t{2} * size);
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(const void* data, std::size_t bytes) {
  Sha256 sha;
  sha.update(data, bytes);
  return sha.hex();
}

}  // namespace zeropp::zero
